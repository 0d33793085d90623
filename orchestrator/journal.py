"""The record of a run: one JSON line for everything that the machine found worth saying."""

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

from .machine.events import Record


class Journal:
    """Append-only; in memory for those who ask, and in a file if the run has a folder.

    Args:
        path: the file, None keeps it in memory alone.
    """

    def __init__(self, path: Path | None) -> None:
        self.entries: list[Mapping[str, object]] = []
        self._file: int | None = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)

    def write(self, record: Record) -> None:
        """Append one line with the time of day."""
        entry = {
            "time": round(time.time(), 6),
            "what": record.what,
            "generation": str(record.generation) if record.generation else None,
            **record.facts,
        }
        self.entries.append(entry)
        if self._file is not None:
            os.write(self._file, (json.dumps(entry, default=str) + "\n").encode())

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

"""A line per microbatch and per decided step, for those who check or measure from outside; off by default."""

import json
import os
from pathlib import Path
from typing import Any


class Trace:
    """Appends JSON lines to a file of this rank.

    Args:
        folder: where the file goes, None writes nothing.
        incarnation: of this rank; names the file.
    """

    def __init__(self, folder: str | None, incarnation: str) -> None:
        self._file = None
        if folder is not None:
            path = Path(folder, f"{incarnation}.jsonl")
            self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)

    def __bool__(self) -> bool:
        return self._file is not None

    def write(self, event: str, **facts: Any) -> None:
        """One line, whole even if the process is killed right after."""
        if self._file is not None:
            os.write(self._file, (json.dumps({"event": event, **facts}) + "\n").encode())

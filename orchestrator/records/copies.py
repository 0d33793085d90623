"""The records of a run on object storage: copies of its local files."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...actors.messages import StepRecord
from ...actors.saved.storage import Storage
from ...conf.errors import SavedStateError
from . import json_lines

EVERY_S = 30.0
# A copy may take this part of the time: files that grow are copied as a whole.
_SHARE = 0.05


class Copies:
    """Copies what has changed in a folder, now and then and at the end; a sink, so nothing waits for it.

    Args:
        folder: the local one.
        storage: where to.
        every: seconds from one copy to the next, at least.
    """

    name = "the copy of the records"
    again = True

    def __init__(self, folder: Path, storage: Storage, every: float = EVERY_S) -> None:
        self._folder = folder
        self._storage = storage
        self._every = every
        self._due = 0.0
        self._copied: dict[str, tuple[int, int]] = {}

    def write(self, records: Sequence[StepRecord]) -> None:
        began = time.monotonic()
        if began < self._due:
            return
        self.copy()
        now = time.monotonic()
        self._due = now + max(self._every, (now - began) / _SHARE)

    def close(self, failures: Mapping[int, Exception]) -> None:
        self.copy()

    def copy(self) -> None:
        """Everything that has changed since.

        Raises:
            SavedStateError: the storage does not take it.
        """
        for path in sorted(self._folder.rglob("*")):
            try:
                if not path.is_file():
                    continue
                name, seen = path.relative_to(self._folder).as_posix(), path.stat()
                mark = (seen.st_mtime_ns, seen.st_size)
                if self._copied.get(name) == mark:
                    continue
                data = path.read_bytes()
            except FileNotFoundError:
                # A file under another name while it was made.
                continue
            self._storage.write(name, [data])
            self._copied[name] = mark


def fetch(folder: Path, storage: Storage) -> None:
    """What an earlier life of a run has copied of its steps comes first in the file of this one.

    Raises:
        SavedStateError: the storage cannot be read.
    """
    file = folder / json_lines.FILE
    if file.exists() or all(entry.name != json_lines.FILE for entry in storage.entries()):
        return
    Storage(str(folder)).write(json_lines.FILE, [storage.read(json_lines.FILE)])


def copy_all(folder: Path, storage: Storage) -> str | None:
    """Copy everything once more; returns what went wrong."""
    try:
        Copies(folder, storage).copy()
    except SavedStateError as error:
        return str(error)
    return None

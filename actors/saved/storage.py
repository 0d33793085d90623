"""A folder of files, on a disk or on object storage: what is written is there whole, or it is not there."""

import contextlib
import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...conf.errors import SavedStateError

Bytes = bytes | memoryview
_PARTIAL = ".partial"
_PIECE = 1 << 24


@dataclass(frozen=True)
class Entry:
    """One thing in a folder; ``bytes`` is None for a folder."""

    name: str
    bytes: int | None


class Storage:
    """Files below one folder.

    Args:
        where: a path, or the URI of a folder as ``pyarrow.fs`` reads it, as in ``s3://bucket/folder``.

    Raises, in every method:
        SavedStateError: the storage did not do what was asked; one line that names the file.
    """

    def __init__(self, where: str) -> None:
        from pyarrow import fs

        with _named(where, "used"):
            found: tuple[Any, str] = fs.FileSystem.from_uri(where) if "://" in where else (fs.LocalFileSystem(), where)
        self._system, self._root = found[0], found[1].rstrip("/")
        # On object storage a file appears when it is complete; on a disk it is renamed then.
        self._local = isinstance(self._system, fs.LocalFileSystem)

    def write(self, path: str, parts: Sequence[Bytes]) -> None:
        """A file with these bytes, durable when this returns; one of the same name is replaced in one go."""
        place = self._place(path)
        made = f"{place}.{uuid.uuid4().hex[:8]}{_PARTIAL}" if self._local else place
        with _named(path, "written"):
            self._system.create_dir(place.rpartition("/")[0], recursive=True)
            try:
                with self._system.open_output_stream(made) as stream:
                    for part in parts:
                        held = memoryview(part)
                        # In pieces: a signal, or a full disk, should not wait for the whole.
                        for begin in range(0, held.nbytes, _PIECE):
                            stream.write(held[begin : begin + _PIECE])
                if self._local:
                    _make_durable(made, place)
            except BaseException:
                if self._local:
                    with contextlib.suppress(OSError):
                        os.unlink(made)
                raise

    def read(self, path: str) -> bytes:
        """All bytes of a file."""
        with _named(path, "read"), self._system.open_input_stream(self._place(path)) as stream:
            return bytes(stream.read())

    def read_into(self, path: str, memory: memoryview) -> None:
        """Fill ``memory`` with a file that is just as long."""
        with _named(path, "read"), self._system.open_input_file(self._place(path)) as file:
            if file.size() != memory.nbytes:
                raise SavedStateError(f"{path} has {file.size()} bytes instead of {memory.nbytes}")
            left = memory
            while left.nbytes:
                count = file.readinto(left[:_PIECE])
                if not count:
                    raise SavedStateError(f"{path} ends {left.nbytes} bytes too early")
                left = left[count:]

    def entries(self, path: str = "") -> list[Entry]:
        """What is in a folder, by name; nothing if there is no such folder. Files that were not completed count too."""
        from pyarrow import fs

        with _named(path, "listed"):
            found = self._system.get_file_info(fs.FileSelector(self._place(path), allow_not_found=True))
        there = (Entry(one.base_name, one.size if one.is_file else None) for one in found)
        return sorted(there, key=lambda entry: entry.name)

    def delete(self, path: str) -> None:
        """Remove a file; one that is gone already is no error."""
        with _named(path, "deleted"), contextlib.suppress(FileNotFoundError):
            self._system.delete_file(self._place(path))

    def delete_folder(self, path: str) -> None:
        """Remove a folder with all that is in it; one that is gone already is no error."""
        with _named(path, "deleted"), contextlib.suppress(FileNotFoundError):
            self._system.delete_dir(self._place(path))

    def _place(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root


@contextlib.contextmanager
def _named(path: str, done: str) -> Any:
    """Every failure of the storage as one of ours."""
    try:
        yield
    except SavedStateError:
        raise
    except Exception as error:
        text = " ".join(str(error).split()) or type(error).__name__
        raise SavedStateError(f"{path or 'the folder of saved states'} cannot be {done}: {text}") from error


def _make_durable(made: str, place: str) -> None:
    """The bytes first, then the name."""
    _sync(made, os.O_RDONLY)
    os.replace(made, place)
    _sync(place.rpartition("/")[0], os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: str, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""A folder of files, on a disk or on object storage: what is written is there whole, or it is not there."""

import contextlib
import os
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from ...conf.errors import SavedStateError
from .patience import Answer, within

Bytes = bytes | memoryview
_PARTIAL = ".partial"
_PIECE = 1 << 24
PATIENCE_S = 60.0


@dataclass(frozen=True)
class Entry:
    """One thing in a folder; ``bytes`` is None for a folder."""

    name: str
    bytes: int | None


def below(where: str, *names: str) -> str:
    """A folder in a folder, each a path or a URI, which may end with options.

    >>> below("/data", "gpt", "checkpoints"), below("s3://bucket/a?region=eu-west-1", "gpt")
    ('/data/gpt/checkpoints', 's3://bucket/a/gpt?region=eu-west-1')
    """
    place, mark, options = where.partition("?") if is_remote(where) else (where, "", "")
    return "/".join((place.rstrip("/"), *names)) + mark + options


def is_remote(where: str) -> bool:
    """Whether it is a URI."""
    return "://" in where


def shown(where: str) -> str:
    """A path or URI without what may be secret in it: user, password and options.

    >>> shown("s3://key:secret@bucket/a?endpoint_override=h")
    's3://bucket/a'
    """
    if not is_remote(where):
        return where
    scheme, _, rest = where.partition("?")[0].partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


class Storage:
    """Files below one folder. It is asked for the first time when it is needed.

    Args:
        where: a path, or the URI of a folder as ``pyarrow.fs`` reads it, as in ``s3://bucket/folder``.
        patience: seconds that it may take for one call, or for 16 MiB of a file.

    Raises, in every method:
        SavedStateError: the storage did not do what was asked, or not in time; one line that names the file.
    """

    def __init__(self, where: str, patience: float = PATIENCE_S) -> None:
        self._where = where
        self._patience = patience

    @cached_property
    def _found(self) -> tuple[Any, str]:
        from pyarrow import fs

        with _named(shown(self._where), "used"):
            remote = is_remote(self._where)
            system, root = fs.FileSystem.from_uri(self._where) if remote else (fs.LocalFileSystem(), self._where)
        return system, root.rstrip("/")

    def resolved(self) -> tuple[Any, str]:
        """The file system, and the folder in it."""
        return self._within(lambda: self._found, shown(self._where), "used")

    def inside(self, folder: str) -> "Storage":
        """A folder in this one."""
        return Storage(below(self._where, folder), self._patience)

    def probe(self) -> None:
        """Write a file and take it away again, so that what cannot be used is known before anything begins."""
        name = f"probe-{uuid.uuid4().hex[:8]}"
        self.write(name, [b"everstep"])
        self.delete(name)

    def write(self, path: str, parts: Sequence[Bytes]) -> None:
        """A file with these bytes, durable when this returns; one of the same name is replaced in one go."""
        system, local = self._system()
        place = self._place(path)
        # On object storage a file appears when it is complete; on a disk it is renamed then.
        made = f"{place}.{uuid.uuid4().hex[:8]}{_PARTIAL}" if local else place

        streams: list[Any] = []

        def begin() -> None:
            system.create_dir(place.rpartition("/")[0], recursive=True)
            streams.append(system.open_output_stream(made))

        def end() -> None:
            streams[0].close()
            if local:
                _make_durable(made, place)

        def give_up() -> None:
            if local:
                with contextlib.suppress(OSError):
                    os.unlink(made)
            # By hand: a stream that is just dropped waits for the storage with the interpreter locked.
            for stream in streams:
                stream.close()

        do = partial(self._within, path=path, done="written", otherwise=give_up)
        do(begin)
        for part in parts:
            held = memoryview(part)
            for start in range(0, held.nbytes, _PIECE):
                do(partial(streams[0].write, held[start : start + _PIECE]))
        do(end)

    def read(self, path: str) -> bytes:
        """All bytes of a file."""
        system, _ = self._system()

        def work() -> bytes:
            with system.open_input_stream(self._place(path)) as stream:
                return bytes(stream.read())

        return self._within(work, path, "read")

    def read_into(self, path: str, memory: memoryview) -> None:
        """Fill ``memory`` with a file that is just as long."""
        system, _ = self._system()

        def begin() -> tuple[Any, int]:
            opened = system.open_input_file(self._place(path))
            return opened, opened.size()

        file, size = self._within(begin, path, "read")
        if size != memory.nbytes:
            raise SavedStateError(f"{path} has {size} bytes instead of {memory.nbytes}")
        left = memory
        while left.nbytes:
            count = self._within(partial(file.readinto, left[:_PIECE]), path, "read")
            if not count:
                raise SavedStateError(f"{path} ends {left.nbytes} bytes too early")
            left = left[count:]
        file.close()

    def entries(self, path: str = "") -> list[Entry]:
        """What is in a folder, by name; nothing if there is no such folder. Files that were not completed count too."""
        from pyarrow import fs

        system, _ = self._system()
        wanted = fs.FileSelector(self._place(path), allow_not_found=True)
        found = self._within(lambda: system.get_file_info(wanted), path, "listed")
        there = (Entry(one.base_name, one.size if one.is_file else None) for one in found)
        return sorted(there, key=lambda entry: entry.name)

    def delete(self, path: str) -> None:
        """Remove a file; one that is gone already is no error."""
        self._remove(path, self._system()[0].delete_file)

    def delete_folder(self, path: str) -> None:
        """Remove a folder with all that is in it; one that is gone already is no error."""
        self._remove(path, self._system()[0].delete_dir)

    def _remove(self, path: str, remove: Callable[[str], object]) -> None:
        def work() -> None:
            with contextlib.suppress(FileNotFoundError):
                remove(self._place(path))

        self._within(work, path, "deleted")

    def _system(self) -> tuple[Any, bool]:
        from pyarrow import fs

        system, _ = self.resolved()
        return system, isinstance(system, fs.LocalFileSystem)

    def _place(self, path: str) -> str:
        root = self._found[1]
        return f"{root}/{path}" if path else root

    def _within(
        self, work: Callable[[], Answer], path: str, done: str, otherwise: Callable[[], None] | None = None
    ) -> Answer:
        with _named(path, done):
            return within(self._patience, work, otherwise)


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

"""Where the controller of a run is found: the terms that were taken, and where each one's controller listens.

A term is taken by create-if-absent, so no two controller lives hold the same one, and the newest counts.
"""

import contextlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

Address = tuple[str, int]


class Directory(Protocol):
    """Terms of one launch of a run. It travels to ranks, so it is a small value.

    Raises, in every method:
        OSError: it cannot be reached.
    """

    def take(self) -> int:
        """A term that nobody has held, newer than all that were taken, from 1 on."""
        ...

    def newest(self) -> int:
        """The newest term that was taken, 0 if none was."""
        ...

    def publish(self, term: int, address: Address) -> None:
        """Say where the controller of a term listens."""
        ...

    def controller(self) -> tuple[int, Address] | None:
        """The newest term whose controller listens, and where; None if there is none yet."""
        ...

    def forget(self) -> None:
        """The run is over: leave nothing of it."""
        ...


@dataclass(frozen=True)
class FolderDirectory:
    """Files of a folder, one a term; for the processes of one machine.

    Attributes:
        path: of the folder, which is this directory's own.
    """

    path: str

    def take(self) -> int:
        Path(self.path).mkdir(parents=True, exist_ok=True)
        term = self.newest() + 1
        while True:
            with contextlib.suppress(FileExistsError):
                os.close(os.open(Path(self.path, str(term)), os.O_CREAT | os.O_EXCL | os.O_WRONLY))
                return term
            term += 1

    def newest(self) -> int:
        return max(self._terms(), default=0)

    def publish(self, term: int, address: Address) -> None:
        whole = Path(self.path, f"{term}.new")
        whole.write_text(json.dumps(address))
        whole.replace(Path(self.path, str(term)))

    def controller(self) -> tuple[int, Address] | None:
        for term in sorted(self._terms(), reverse=True):
            with contextlib.suppress(OSError):
                if text := Path(self.path, str(term)).read_text():
                    return term, _address(text)
        return None

    def forget(self) -> None:
        # One by one: whatever else lies there is not this directory's own.
        for term in self._terms():
            for name in (str(term), f"{term}.new"):
                Path(self.path, name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            os.rmdir(self.path)

    def _terms(self) -> list[int]:
        try:
            return [int(name) for name in os.listdir(self.path) if name.isdigit()]
        except FileNotFoundError:
            return []


@dataclass(frozen=True)
class RayDirectory:
    """Keys in Ray's key-value store, one a term.

    Attributes:
        prefix: of the keys, which are this directory's own.
        namespace: in the store.
    """

    prefix: str
    namespace: str

    def take(self) -> int:
        from ray.experimental.internal_kv import _internal_kv_put

        term = self.newest() + 1
        with _reached():
            while _internal_kv_put(self._key(term), b"", overwrite=False, namespace=self.namespace):
                term += 1
        return term

    def newest(self) -> int:
        return max(self._terms(), default=0)

    def publish(self, term: int, address: Address) -> None:
        from ray.experimental.internal_kv import _internal_kv_put

        with _reached():
            _internal_kv_put(self._key(term), json.dumps(address), overwrite=True, namespace=self.namespace)

    def controller(self) -> tuple[int, Address] | None:
        from ray.experimental.internal_kv import _internal_kv_get

        for term in sorted(self._terms(), reverse=True):
            with _reached():
                text = _internal_kv_get(self._key(term), namespace=self.namespace)
            if text:
                return term, _address(text.decode())
        return None

    def forget(self) -> None:
        from ray.experimental.internal_kv import _internal_kv_del

        with _reached():
            _internal_kv_del(f"{self.prefix}/", del_by_prefix=True, namespace=self.namespace)

    def _key(self, term: int) -> str:
        return f"{self.prefix}/term/{term}"

    def _terms(self) -> list[int]:
        from ray.experimental.internal_kv import _internal_kv_list

        with _reached():
            keys = _internal_kv_list(f"{self.prefix}/term/", namespace=self.namespace)
        return [int(key.rpartition(b"/")[2]) for key in keys]


@contextmanager
def _reached() -> Iterator[None]:
    """What Ray raises when its store is out of reach differs from call to call."""
    try:
        yield
    except Exception as error:
        raise OSError(f"Ray's key-value store cannot be reached: {error}") from error


def _address(text: str) -> Address:
    host, port = json.loads(text)
    return str(host), int(port)

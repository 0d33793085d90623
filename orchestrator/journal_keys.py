"""The mirror of a journal in Ray's key-value store, which lives with the head: whoever takes over finds it there.

A journal is small: about 150 bytes for each event, so 15 MB for the start of 100,000 ranks and 1 kB for a recovery.
"""

import threading

from ..actors.directory import RayDirectory


class Keys:
    """Segments of lines under keys of their own; written by a thread, since a write takes most of a millisecond.

    Args:
        directory: under whose prefix they lie, so that they go with the run's terms.
    """

    def __init__(self, directory: RayDirectory) -> None:
        self._prefix = f"{directory.prefix}/journal"
        self._namespace = directory.namespace
        self._changed = threading.Condition()
        self._waiting: list[bytes] = []
        self._term = 0
        self._segment = 0
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None

    def append(self, term: int, lines: bytes) -> None:
        with self._changed:
            if self._error is not None:
                raise OSError(f"Ray's key-value store: {self._error}")
            self._term = term
            self._waiting.append(lines)
            if self._thread is None:
                self._thread = threading.Thread(target=self._write, name="everstep-journal", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def terms(self) -> list[int]:
        return sorted({int(key.split("/")[-2]) for key in self._keys(f"{self._prefix}/")})

    def read(self, term: int) -> bytes:
        from ray.experimental.internal_kv import _internal_kv_get

        keys = sorted(self._keys(f"{self._prefix}/{term}/"))
        return b"".join(_internal_kv_get(key, namespace=self._namespace) or b"" for key in keys)

    def where(self, term: int) -> str:
        return f"the journal of term {term} in Ray's key-value store"

    def _keys(self, prefix: str) -> list[str]:
        from ray.experimental.internal_kv import _internal_kv_list

        return [key.decode() for key in _internal_kv_list(prefix, namespace=self._namespace)]

    def _write(self) -> None:
        from ray.experimental.internal_kv import _internal_kv_put

        # Ends with the process.
        while self._error is None:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                segment, self._waiting = b"".join(self._waiting), []
            key = f"{self._prefix}/{self._term}/{self._segment:08d}"
            self._segment += 1
            try:
                _internal_kv_put(key, segment, overwrite=False, namespace=self._namespace)
            except Exception as error:
                self._error = error

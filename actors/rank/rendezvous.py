"""Connections of this process to the rendezvous store, one of them always ready before it is needed."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from torch._C._distributed_c10d import TCPStore

# One for the next meeting, and one for the case that a meeting waits for a dead peer.
_READY = 2
Place = tuple[str, int]


class StoreClients:
    """Gives out clients of the store; each is used by one meeting at a time.

    A meeting that waits for a dead peer holds its client, so there is another one. For every connection torch asks the
    resolver for the name of the other end, here and in the thread that serves all ranks, which may take seconds. So
    clients are used again, and new ones are connected when a meeting is over, not while one is on.

    Args:
        timeout: seconds; bound of connecting and of every wait on a client.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._lock = threading.Lock()
        self._place: Place | None = None
        self._ready: list[TCPStore] = []
        self._lent = 0
        self._filling = False

    def prepare(self, host: str, port: int) -> None:
        """Members will meet there: connect in the background what is missing to be ready for it."""
        with self._lock:
            self._turn_to((host, port))
            self._restock()

    def take(self, host: str, port: int) -> TCPStore:
        """A connected client that the caller keeps.

        Raises:
            RuntimeError: the store cannot be reached.
        """
        with self._lock:
            self._turn_to((host, port))
            if self._ready:
                return self._ready.pop()
        return self._connect(host, port)

    @contextmanager
    def lent(self, host: str, port: int) -> Iterator[TCPStore]:
        """A client for one meeting; if that fails, it is not used again.

        Raises:
            RuntimeError: the store cannot be reached.
        """
        client = self.take(host, port)
        with self._lock:
            self._lent += 1
        try:
            yield client
            with self._lock:
                if self._place == (host, port):
                    self._ready.append(client)
        finally:
            with self._lock:
                self._lent -= 1
                self._restock()

    def _turn_to(self, place: Place) -> None:
        """Another controller has another store."""
        if self._place != place:
            self._place, self._ready = place, []

    def _restock(self) -> None:
        """One thread connects what is missing; the lock is held."""
        if self._missing and not self._filling:
            self._filling = True
            threading.Thread(target=self._fill, name="everstep-store", daemon=True).start()

    @property
    def _missing(self) -> Place | None:
        """Where another client is to be connected to; None if there are enough."""
        return self._place if len(self._ready) + self._lent < _READY else None

    def _fill(self) -> None:
        while (place := self._wanted()) is not None:
            try:
                client = self._connect(*place)
            except Exception:
                # Whoever needs one finds out.
                with self._lock:
                    self._filling = False
                return
            with self._lock:
                if self._missing == place:
                    self._ready.append(client)

    def _wanted(self) -> Place | None:
        """What the filling thread is to do next; None is its end."""
        with self._lock:
            self._filling = self._missing is not None
            return self._missing

    def _connect(self, host: str, port: int) -> TCPStore:
        limit = timedelta(seconds=self._timeout)
        return TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=limit)

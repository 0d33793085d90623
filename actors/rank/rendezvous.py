"""Connections of this process to the rendezvous store, one of them always ready before it is needed."""

import threading
from concurrent.futures import Future
from datetime import timedelta

from torch._C._distributed_c10d import TCPStore


class StoreClients:
    """Gives out clients of the store; each is used for one meeting.

    A meeting that waits for a dead peer holds its client, so every generation has its own. Connecting may stall for
    seconds in a reverse name lookup, so the next client is connected while nobody waits for it.

    Args:
        timeout: seconds; bound of connecting and of every wait on a client.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._lock = threading.Lock()
        self._reserve: tuple[tuple[str, int], Future[TCPStore]] | None = None

    def take(self, host: str, port: int) -> TCPStore:
        """A connected client of its own for the caller.

        Raises:
            RuntimeError: the store cannot be reached.
        """
        with self._lock:
            reserve, self._reserve = self._reserve, None
        try:
            if reserve is not None and reserve[0] == (host, port):
                future = reserve[1]
                if future.done() and future.exception() is None:
                    return future.result()
            return self._connect(host, port)
        finally:
            self._restock(host, port)

    def _restock(self, host: str, port: int) -> None:
        future: Future[TCPStore] = Future()
        with self._lock:
            self._reserve = ((host, port), future)
        threading.Thread(target=self._fill, args=(host, port, future), name="everstep-store", daemon=True).start()

    def _fill(self, host: str, port: int, future: "Future[TCPStore]") -> None:
        try:
            future.set_result(self._connect(host, port))
        except RuntimeError as error:
            future.set_exception(error)

    def _connect(self, host: str, port: int) -> TCPStore:
        limit = timedelta(seconds=self._timeout)
        return TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=limit)

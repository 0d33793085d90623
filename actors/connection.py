"""One socket to one controller. Whoever sends never waits: what the kernel does not take at once waits here."""

import contextlib
import select
import socket
import threading
from typing import Any

from . import wire

_LOOK_AGAIN_S = 1.0


class Connection:
    """A connection whose first words are an introduction; what is sent before those are said comes after them.

    Args:
        address: host and port.
        token: the run's secret.
        timeout: of connecting, in seconds.

    Raises:
        OSError: nobody listens there.
    """

    def __init__(self, address: tuple[str, int], token: str, timeout: float) -> None:
        self._socket = socket.create_connection(address, timeout=timeout)
        # Blocking from here on: a reader ends when either side closes.
        self._socket.settimeout(None)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._changed = threading.Condition()
        self._waiting = bytearray()
        self._introduced = False
        self._draining = False
        self._greeting = wire.greeting(token)
        self.closed = False

    @property
    def host(self) -> str:
        """Address of this machine as the other side's network sees it."""
        return str(self._socket.getsockname()[0])

    def introduce(self, words: bytes) -> None:
        """Say these first."""
        with self._changed:
            self._waiting[:0] = self._greeting + words
            self._introduced = True
            self._push()

    def send(self, data: bytes) -> None:
        """Hand ``data`` to the kernel, or keep it until that takes it; lost if the connection is."""
        with self._changed:
            self._waiting += data
            if self._introduced:
                self._push()

    def receive(self) -> Any:
        """The next message, blocking.

        Raises:
            WireError: the connection ended.
        """
        return wire.receive(self._socket)

    def close(self, patience: float = 0.0) -> None:
        """End it, after what waits was sent, or ``patience`` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting or self.closed, patience)
            self._end()

    def _push(self) -> None:
        while self._waiting and not self.closed:
            try:
                sent = self._socket.send(self._waiting, socket.MSG_DONTWAIT)
            except BlockingIOError:
                if not self._draining:
                    self._draining = True
                    threading.Thread(target=self._drain, name="everstep-drain", daemon=True).start()
                return
            except OSError:
                self._end()
            else:
                del self._waiting[:sent]
        self._changed.notify_all()

    def _drain(self) -> None:
        writable = select.poll()
        writable.register(self._socket, select.POLLOUT)
        while True:
            writable.poll(1000 * _LOOK_AGAIN_S)
            with self._changed:
                self._push()
                if not self._waiting or self.closed:
                    self._draining = False
                    return

    def _end(self) -> None:
        """Whoever reads hears of it; the socket is freed with this object."""
        if not self.closed:
            self.closed = True
            self._waiting.clear()
            self._changed.notify_all()
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

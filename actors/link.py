"""A rank's connection to the controller: sends from any thread, receives and beats on threads of its own."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable

from . import wire
from .messages import FromRank, ToRank


class Link:
    """One duplex connection. The broken socket is also how the controller hears of this process's death.

    Args:
        address: host and port of the controller.
        token: the run's secret.
        on_message: called on the reader thread with every message.
        on_lost: called once on the reader thread when the connection is gone.
        connect_timeout: in seconds.
    """

    def __init__(
        self,
        address: tuple[str, int],
        token: str,
        on_message: Callable[[ToRank], None],
        on_lost: Callable[[], None],
        connect_timeout: float,
    ) -> None:
        self._socket = socket.create_connection(address, timeout=connect_timeout)
        # Blocking from here on: the reader ends when either side closes.
        self._socket.settimeout(None)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sending = threading.Lock()
        self._on_message = on_message
        self._on_lost = on_lost
        self._closed = False
        self.last_heard = time.monotonic()
        self._write(wire.greeting(token))

    @property
    def host(self) -> str:
        """Address of this machine as the controller's network sees it."""
        return str(self._socket.getsockname()[0])

    def start(self) -> None:
        """Begin to receive."""
        threading.Thread(target=self._read, name="everstep-link", daemon=True).start()

    def beat(self, interval: float, make: Callable[[], FromRank]) -> None:
        """Send a sign of life every ``interval`` seconds, for as long as the process lives."""
        threading.Thread(target=self._beat, args=(interval, make), name="everstep-beat", daemon=True).start()

    def send(self, message: FromRank) -> None:
        """Send; a broken connection is noticed by the reader, not here."""
        with contextlib.suppress(OSError):
            self._write(wire.encode(message))

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _write(self, data: bytes) -> None:
        with self._sending:
            self._socket.sendall(data)

    def _beat(self, interval: float, make: Callable[[], FromRank]) -> None:
        while not self._closed:
            self.send(make())
            time.sleep(interval)

    def _read(self) -> None:
        while True:
            try:
                message = wire.receive(self._socket)
            except wire.WireError:
                break
            self.last_heard = time.monotonic()
            self._on_message(message)
        if not self._closed:
            self._on_lost()

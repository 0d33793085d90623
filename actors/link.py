"""A process's way to the controller, whichever that is now: sends from any thread, receives and beats on its own.

Ranks, vaults and sentinels have one. Controllers come and go. When the connection ends, or the controller says nothing
for long while a newer term was taken, it looks up who holds the newest term and introduces itself there. It never goes
back to an older one.
"""

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from . import wire
from .connection import Connection
from .directory import Directory

CONNECT_S = 5.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 1.0


class Link:
    """One connection at a time. Its broken socket is also how a controller hears of this process's death.

    Args:
        directory: where the controller is found.
        token: the run's secret.
        introduce: what a controller must hear first; called anew for each connection, may take other locks.
        on_message: called on the reader thread with every message.
        silence: seconds without a word from the controller after which a newer one is looked for.
    """

    def __init__(
        self,
        directory: Directory,
        token: str,
        introduce: Callable[[], Iterable[object]],
        on_message: Callable[[Any], None],
        silence: float,
    ) -> None:
        self._directory = directory
        self._token = token
        self._introduce = introduce
        self._on_message = on_message
        self._silence = silence
        self._connection: Connection | None = None
        self._closed = threading.Event()
        self.term = 0
        self.host = ""
        self.last_heard = time.monotonic()

    def open(self, timeout: float) -> None:
        """Connect, introduce this process, and begin to receive.

        Raises:
            TimeoutError: no controller was found in ``timeout`` seconds.
        """
        connection = self._connect(timeout)
        if connection is None:
            raise TimeoutError(f"no controller of the run was found in {timeout:g} s: is it alive, and in reach?")
        self.host = connection.host
        self.last_heard = time.monotonic()
        threading.Thread(target=self._read, args=(connection,), name="everstep-link", daemon=True).start()
        threading.Thread(target=self._watch, name="everstep-watch", daemon=True).start()

    def beat(self, interval: float, make: Callable[[], object]) -> None:
        """Send a sign of life every ``interval`` seconds, for as long as the process lives."""
        threading.Thread(target=self._beat, args=(interval, make), name="everstep-beat", daemon=True).start()

    def send(self, message: object) -> None:
        """Send; never waits nor raises. Lost if no controller listens: introductions say what must not be."""
        connection = self._connection
        if connection is not None:
            connection.send(wire.encode(message))

    def close(self, patience: float = 0.0) -> None:
        """End it, after what was sent has left, or ``patience`` seconds."""
        self._closed.set()
        if self._connection is not None:
            self._connection.close(patience)

    def _beat(self, interval: float, make: Callable[[], object]) -> None:
        while not self._closed.wait(interval):
            self.send(make())

    def _read(self, connection: Connection | None) -> None:
        # Ended by ``close``, or with the process: a rank without a controller ends itself.
        while connection is not None:
            try:
                message = connection.receive()
            except wire.WireError:
                connection = self._connect()
                continue
            self.last_heard = time.monotonic()
            self._on_message(message)

    def _watch(self) -> None:
        """A controller that is stopped keeps its connections; only its silence tells."""
        while not self._closed.wait(self._silence / 4):
            connection = self._connection
            if connection is None or time.monotonic() - self.last_heard < self._silence:
                continue
            with contextlib.suppress(OSError):
                found = self._directory.controller()
                if found is not None and found[0] > self.term:
                    connection.close()

    def _connect(self, timeout: float | None = None) -> Connection | None:
        """A connection to the newest controller, once there is one; None if this link was closed, or too late."""
        self._connection = None
        deadline = None if timeout is None else time.monotonic() + timeout
        pause = _FIRST_PAUSE_S
        while not self._closed.is_set():
            connection = self._try_newest()
            if connection is not None:
                return connection
            if deadline is not None and time.monotonic() > deadline:
                return None
            # Many ranks look at the same moment.
            self._closed.wait(pause * (0.5 + random.random()))
            pause = min(2 * pause, _LONGEST_PAUSE_S)
        return None

    def _try_newest(self) -> Connection | None:
        try:
            found = self._directory.controller()
            if found is None or found[0] < self.term:
                return None
            term, address = found
            connection = Connection(address, self._token, CONNECT_S)
        except OSError:
            return None
        self.term = term
        # From here on nothing is lost: what others send meanwhile comes after the introduction.
        self._connection = connection
        connection.introduce(b"".join(map(wire.encode, self._introduce())))
        return connection

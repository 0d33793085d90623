"""Bytes by name, from whoever holds them to whoever asks and proves the run's token. Loads no torch and no ray.

A name, then the bytes, then a word of thanks: only when the receiver has the whole, with the CRC-32 that it was told
of, does the holder count it as given.
"""

import contextlib
import hmac
import socket
import struct
import threading
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from ..conf.errors import ExchangeError
from . import wire

Address = tuple[str, int]
_SIZE = struct.Struct("!q")
_THANKS = b"whole"
_NOT_HERE = -1
_PIECE = 1 << 22
# Between two pieces nobody keeps the other side waiting for longer.
STALL_S = 20.0
_LOOK_AGAIN_S = 0.5
# Descriptors, or threads, have run out: others give some back.
BACK_OFF_S = 0.1


class Lender:
    """Gives out what ``lend`` finds, each receiver on a thread of its own.

    Args:
        host: address that receivers can reach.
        token: the run's secret.
        lend: by name, a context that holds the memory still; None in it if there is none of that name.
        given: called with the name when a receiver has got the whole.
        half: called with the name and what it is wanted for, when half of it has left.
    """

    def __init__(
        self,
        host: str,
        token: str,
        lend: Callable[[Any], AbstractContextManager[memoryview | None]],
        given: Callable[[Any], None] = lambda name: None,
        half: Callable[[Any, str], None] = lambda name, purpose: None,
    ) -> None:
        self._token = token
        self._lend, self._given, self._half = lend, given, half
        self._server = socket.create_server((host, 0), backlog=128)
        self._server.settimeout(_LOOK_AGAIN_S)
        self._closed = threading.Event()
        self.address: Address = (host, self._server.getsockname()[1])
        threading.Thread(target=self._accept, name="everstep-lender", daemon=True).start()

    def close(self) -> None:
        """Give nothing more."""
        self._closed.set()

    def _accept(self) -> None:
        with self._server:
            while not self._closed.is_set():
                try:
                    connection, _ = self._server.accept()
                except TimeoutError:
                    continue
                except OSError:
                    self._closed.wait(BACK_OFF_S)
                    continue
                self._serve_beside(connection)

    def _serve_beside(self, connection: socket.socket) -> None:
        try:
            threading.Thread(target=self._serve, args=(connection,), name="everstep-lender-serves", daemon=True).start()
        except RuntimeError:
            connection.close()
            self._closed.wait(BACK_OFF_S)

    def _serve(self, connection: socket.socket) -> None:
        """Whatever fails here, the receiver hears of it by the end of the connection."""
        with connection, contextlib.suppress(OSError, wire.WireError, ExchangeError):
            connection.settimeout(STALL_S)
            wire.check_greeting(_received(connection, wire.GREETING_BYTES), self._token)
            name, purpose = wire.receive(connection)
            connection.sendall(wire.greeting(self._token))
            with self._lend(name) as memory:
                if memory is None:
                    connection.sendall(_SIZE.pack(_NOT_HERE))
                    return
                connection.sendall(_SIZE.pack(memory.nbytes))
                middle = memory.nbytes // 2
                for begin in range(0, memory.nbytes, _PIECE):
                    if begin <= middle < begin + _PIECE:
                        self._half(name, purpose)
                    connection.sendall(memory[begin : begin + _PIECE])
                if not hmac.compare_digest(_received(connection, len(_THANKS)), _THANKS):
                    return
            self._given(name)


def fetch(address: Address, token: str, name: object, purpose: str, memory: memoryview, crc32: int) -> None:
    """Fill ``memory`` with what is held under ``name``.

    Args:
        purpose: what it is wanted for.

    Raises:
        ExchangeError: it is not there, cannot be reached, or is something else; one line without the name.
    """
    try:
        with socket.create_connection(address, timeout=STALL_S) as connection:
            connection.sendall(wire.greeting(token) + wire.encode((name, purpose)))
            wire.check_greeting(_received(connection, wire.GREETING_BYTES), token)
            (size,) = _SIZE.unpack(_received(connection, _SIZE.size))
            if size == _NOT_HERE:
                raise ExchangeError("it is not held there any more")
            if size != memory.nbytes:
                raise ExchangeError(f"it has {size} bytes instead of {memory.nbytes}")
            checksum = done = 0
            while done < size:
                count = connection.recv_into(memory[done : done + _PIECE])
                if not count:
                    raise ExchangeError(f"the connection ended after {done} of {size} bytes")
                checksum = zlib.crc32(memory[done : done + count], checksum)
                done += count
            if checksum != crc32:
                raise ExchangeError("it is damaged: its CRC-32 is another one")
            connection.sendall(_THANKS)
    except (OSError, wire.WireError) as error:
        raise ExchangeError(" ".join(str(error).split()) or type(error).__name__) from error


def _received(connection: socket.socket, count: int) -> bytes:
    held = bytearray()
    while len(held) < count:
        part = connection.recv(count - len(held))
        if not part:
            raise ExchangeError("the connection ended")
        held += part
    return bytes(held)

"""The controller's end of the control connections. A connection that breaks is the fastest notice of a death."""

import asyncio
import contextlib
import socket

from ..actors import wire
from ..actors.messages import Hello, ToRank
from .cluster import Sink
from .machine.events import Ended, Heard


class Listener:
    """Accepts ranks, turns their frames into events, and sends them messages.

    Args:
        host: address to bind; ranks must be able to reach it.
        token: the run's secret.
    """

    def __init__(self, host: str, token: str) -> None:
        self._host = host
        self._token = token
        self._server: asyncio.Server | None = None
        self._writers: dict[str, asyncio.StreamWriter] = {}
        self._sink: Sink | None = None

    async def open(self, sink: Sink) -> tuple[str, int]:
        """Listen on a free port; returns the address to publish."""
        self._sink = sink
        self._server = await asyncio.start_server(self._serve, self._host, 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return self._host, port

    def send(self, incarnation: str, message: ToRank) -> None:
        """Queue a message; lost if the connection is."""
        writer = self._writers.get(incarnation)
        if writer is not None and not writer.is_closing():
            writer.write(wire.encode(message))

    async def close(self) -> None:
        """Stop listening and drop every connection."""
        if self._server is not None:
            self._server.close()
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert self._sink is not None
        incarnation: str | None = None
        cause = "its connection ended (process gone)"
        try:
            writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            wire.check_greeting(await reader.readexactly(wire.GREETING_BYTES), self._token)
            while True:
                header = await reader.readexactly(wire.HEADER_BYTES)
                message = wire.decode(await reader.readexactly(wire.body_length(header)))
                if isinstance(message, Hello):
                    incarnation = message.incarnation
                    self._writers[incarnation] = writer
                if incarnation is not None:
                    self._sink(Heard(incarnation, message))
        except asyncio.IncompleteReadError:
            pass
        except (OSError, wire.WireError) as error:
            cause = f"its connection broke (process gone): {error}"
        finally:
            with contextlib.suppress(Exception):
                writer.close()
            if incarnation is not None and self._writers.get(incarnation) is writer:
                del self._writers[incarnation]
                self._sink(Ended(incarnation, cause))

"""The controller's end of the control connections. A connection that breaks is the fastest notice of a death."""

import asyncio
import socket
from dataclasses import dataclass

from ..actors import wire
from ..actors.messages import Hello
from ..actors.node.sentinel_messages import SentinelHello
from ..actors.node.vault_messages import VaultHello
from .cluster import Sink
from .machine.events import Ended, Heard, Refused, StopRequested


@dataclass(frozen=True)
class DriverHello:
    """First and only words of a foreground run's driver: the end of its connection is the end of the run."""


class Listener:
    """Accepts ranks, turns their frames into events, and sends them messages; holds the driver's leash too.

    Args:
        host: address to bind; ranks must be able to reach it.
        token: the run's secret.
    """

    def __init__(self, host: str, token: str) -> None:
        self._host = host
        self._token = token
        self._server: asyncio.Server | None = None
        self._connections: dict[str, _Connection] = {}
        self._sink: Sink | None = None
        self._closed = False
        # All that ever connected.
        self.known: set[str] = set()
        self.address: tuple[str, int] | None = None
        self.tied = False

    async def open(self, sink: Sink) -> tuple[str, int]:
        """Listen on a free port; returns the address to publish."""
        self._sink = sink
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self._token, self), self._host, 0)
        port: int = self._server.sockets[0].getsockname()[1]
        self.address = (self._host, port)
        return self.address

    def send(self, incarnation: str, message: object) -> None:
        """Queue a message; lost if the connection is."""
        connection = self._connections.get(incarnation)
        if connection is not None:
            connection.send(message)

    async def report_end(self, incarnation: str, cause: str, patience: float = 1.0) -> None:
        """Tell of an end that was heard of otherwise, but not before the rank's last words were read.

        A process that died has closed its connection, so the connection's own end usually comes first; only a lost
        node or a rank that never connected is told of here.
        """
        deadline = asyncio.get_running_loop().time() + patience
        while incarnation in self._connections and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)
        if self._sink is not None:
            self._sink(Ended(incarnation, cause))

    async def close(self) -> None:
        """Stop listening and drop every connection."""
        self._closed = True
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections.values()):
            connection.close()

    def heard(self, connection: "_Connection", message: object) -> None:
        """A frame came in on a connection."""
        assert self._sink is not None
        if isinstance(message, DriverHello):
            connection.driver = self.tied = True
        if isinstance(message, Hello | VaultHello | SentinelHello):
            connection.incarnation = message.incarnation
            self._connections[message.incarnation] = connection
            self.known.add(message.incarnation)
        if connection.incarnation is not None:
            self._sink(Heard(connection.incarnation, message))  # type: ignore[arg-type]

    def refused(self, reason: str) -> None:
        """A stranger or another version of the protocol knocked."""
        if self._sink is not None:
            self._sink(Refused(reason))

    def ended(self, connection: "_Connection") -> None:
        """A connection is gone, and with it, as far as anybody can tell, the process."""
        assert self._sink is not None
        if connection.driver and not self._closed:
            self._sink(StopRequested("its driver is gone"))
        incarnation = connection.incarnation
        if incarnation is not None and self._connections.get(incarnation) is connection:
            del self._connections[incarnation]
            self._sink(Ended(incarnation, "its process is gone (its connection ended)"))


class _Connection(asyncio.Protocol):
    """Cuts the bytes of one rank into messages; what came before a break is still heard."""

    def __init__(self, token: str, listener: Listener) -> None:
        self._token = token
        self._listener = listener
        self._buffer = bytearray()
        self._greeted = False
        self._transport: asyncio.Transport | None = None
        self.incarnation: str | None = None
        self.driver = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        try:
            while (part := self._take()) is not None:
                if self._greeted:
                    self._listener.heard(self, wire.decode(part))
                else:
                    wire.check_greeting(part, self._token)
                    self._greeted = True
        except wire.WireError as error:
            self._listener.refused(str(error))
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._listener.ended(self)

    def send(self, message: object) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(wire.encode(message))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _take(self) -> bytes | None:
        """The next whole greeting or frame body, if it is there."""
        if not self._greeted:
            return self._cut(0, wire.GREETING_BYTES)
        if len(self._buffer) < wire.HEADER_BYTES:
            return None
        return self._cut(wire.HEADER_BYTES, wire.body_length(bytes(self._buffer[: wire.HEADER_BYTES])))

    def _cut(self, skip: int, length: int) -> bytes | None:
        if len(self._buffer) < skip + length:
            return None
        part = bytes(self._buffer[skip : skip + length])
        del self._buffer[: skip + length]
        return part

"""Frames on a control connection: a greeting that proves the run's token, then length-prefixed pickles.

Pickles are read only after the token was proven: a stranger who finds the port can say nothing.
"""

import hmac
import pickle
import socket
import struct
from typing import Any

from .messages import PROTOCOL

_MAGIC = b"EVST"
_HEADER = struct.Struct("!I")
_GREETING = struct.Struct("!4sI64s")
GREETING_BYTES = _GREETING.size
MAX_FRAME_BYTES = 1 << 30


class WireError(Exception):
    """The other side does not speak our protocol, or the connection broke."""


def greeting(token: str) -> bytes:
    """First bytes of a connection. ``token`` is 64 hexadecimal characters."""
    return _GREETING.pack(_MAGIC, PROTOCOL, token.encode())


def check_greeting(data: bytes, token: str) -> None:
    """Refuse a stranger or another protocol version.

    Raises:
        WireError: with both versions in the text if it is the version.
    """
    magic, version, proof = _GREETING.unpack(data)
    if magic != _MAGIC or not hmac.compare_digest(proof, token.encode()):
        raise WireError("a connection without the run's token was refused")
    if version != PROTOCOL:
        raise WireError(f"a rank speaks control protocol {version}, the controller {PROTOCOL}: install one version")


def encode(message: object) -> bytes:
    """One frame."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return _HEADER.pack(len(body)) + body


def decode(body: bytes) -> Any:
    """The message in a frame's body."""
    return pickle.loads(body)


def body_length(header: bytes) -> int:
    """Length of the body that follows ``header``.

    Raises:
        WireError: absurd length.
    """
    (length,) = _HEADER.unpack(header)
    if length > MAX_FRAME_BYTES:
        raise WireError(f"a frame of {length} bytes was refused")
    return int(length)


HEADER_BYTES = _HEADER.size


def receive(connection: socket.socket) -> Any:
    """The next message, blocking.

    Raises:
        WireError: the connection ended.
    """
    return decode(_exactly(connection, body_length(_exactly(connection, HEADER_BYTES))))


def _exactly(connection: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        try:
            part = connection.recv(count - len(parts))
        except OSError as error:
            raise WireError(f"the control connection broke: {error}") from error
        if not part:
            raise WireError("the control connection ended")
        parts += part
    return bytes(parts)

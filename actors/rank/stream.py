"""A nested value with tensors in it, through a socket: its structure, the bytes of each tensor, and a digest of all.

Tensors are sent from the memory in which they lie and received into memory of their own: nothing is copied twice.
"""

import hashlib
import io
import pickle
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any

import torch
from ray import cloudpickle
from torch import Tensor, nn

from ...conf.errors import HandoverError

_LENGTH = struct.Struct("!Q")
_POLL_S = 0.2
_PIECE = 1 << 22
_DIGEST_BYTES = hashlib.sha256().digest_size


class Channel:
    """A connection on which nothing waits longer than it is worth.

    Args:
        connection: to the other rank.
        worthwhile: asked again and again while nothing moves; once it says no, the transfer is given up.

    Raises, in every method:
        HandoverError: the other rank is gone, or the transfer is given up.
    """

    def __init__(self, connection: socket.socket, worthwhile: Callable[[], bool]) -> None:
        connection.settimeout(_POLL_S)
        self._connection = connection
        self._worthwhile = worthwhile

    def send(self, data: bytes | memoryview) -> None:
        """All of it."""
        left = memoryview(data)
        while left.nbytes:
            left = left[self._moved(lambda left=left: self._connection.send(left[:_PIECE])) :]  # type: ignore[misc]

    def receive_into(self, memory: memoryview) -> None:
        """Until it is full."""
        while memory.nbytes:
            count = self._moved(lambda memory=memory: self._connection.recv_into(memory))  # type: ignore[misc]
            if not count:
                raise HandoverError("the connection ended before the state was whole")
            memory = memory[count:]

    def receive(self, count: int) -> bytes:
        """So many bytes."""
        held = bytearray(count)
        self.receive_into(memoryview(held))
        return bytes(held)

    def _moved(self, move: Callable[[], int]) -> int:
        while True:
            try:
                return move()
            except TimeoutError:
                if not self._worthwhile():
                    raise HandoverError("the transfer was given up: it is too late") from None
            except OSError as error:
                raise HandoverError(f"the connection broke: {error}") from None


class _Packer(cloudpickle.Pickler):  # type: ignore[misc]
    """Leaves plain tensors out of the structure; one that is met twice is sent once."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.tensors: list[Tensor] = []
        self._places: dict[tuple[Any, ...], int] = {}

    def persistent_id(self, value: Any) -> Any:
        if type(value) not in (Tensor, nn.Parameter) or value.layout is not torch.strided or value.is_quantized:
            return None
        key = memory_of(value)
        if key not in self._places:
            self._places[key] = len(self.tensors)
            self.tensors.append(value.detach())
        return self._places[key], value.dtype, tuple(value.shape)


class _Unpacker(pickle.Unpickler):
    """Puts empty tensors where others were left out."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.tensors: dict[int, Tensor] = {}

    def persistent_load(self, place: Any) -> Tensor:
        number, dtype, shape = place
        if number not in self.tensors:
            self.tensors[number] = torch.empty(shape, dtype=dtype)
        return self.tensors[number]


class _Filler(_Unpacker):
    """Makes each tensor from its bytes, in memory of its own."""

    def __init__(self, file: io.BytesIO, raw: Sequence[Tensor]) -> None:
        super().__init__(file)
        self._raw = raw

    def persistent_load(self, place: Any) -> Tensor:
        number, dtype, shape = place
        if number not in self.tensors:
            self.tensors[number] = self._raw[number].clone().view(dtype).view(shape)
        return self.tensors[number]


def pack(value: Any) -> tuple[bytes, list[Tensor]]:
    """The structure of a value without its tensors, and those, each once; they stay where they are."""
    file = io.BytesIO()
    packer = _Packer(file)
    packer.dump(value)
    return file.getvalue(), packer.tensors


def unpack(structure: bytes, raw: Sequence[Tensor]) -> Any:
    """The value of a structure, with copies of tensors whose bytes these are, in the order of ``pack``."""
    return _Filler(io.BytesIO(structure), raw).load()


def memory_of(tensor: Tensor) -> tuple[Any, ...]:
    """Equal for tensors that are the same: as all of their memory is."""
    memory = tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tensor.stride()
    return *memory, tensor.dtype, tensor.shape, tensor.device


def send(channel: Channel, value: Any, half: Callable[[str], None] = lambda evidence: None) -> bytes:
    """Send everything but the digest, which says that it is whole.

    Args:
        half: called when half of the tensors are sent, with how many bytes those are.

    Returns:
        The digest, to be sent once it is known that nothing has changed meanwhile.
    """
    structure, tensors = pack(value)
    digest = hashlib.sha256(structure)
    channel.send(_LENGTH.pack(len(structure)) + structure)
    total, sent = sum(tensor.nbytes for tensor in tensors), 0
    for place, tensor in enumerate(tensors):
        if place == len(tensors) // 2:
            half(f"{sent} of {total} bytes have passed")
        memory = _bytes(tensor.cpu().contiguous())
        digest.update(memory)
        channel.send(memory)
        sent += tensor.nbytes
    return digest.digest()


def receive(channel: Channel, half: Callable[[str], None] = lambda evidence: None) -> Any:
    """What ``send`` and the digest after it have sent; tensors lie in host memory.

    Raises:
        HandoverError: it is not whole, or not what was sent.
    """
    (length,) = _LENGTH.unpack(channel.receive(_LENGTH.size))
    structure = channel.receive(length)
    digest = hashlib.sha256(structure)
    unpacker = _Unpacker(io.BytesIO(structure))
    value = unpacker.load()
    total, received = sum(tensor.nbytes for tensor in unpacker.tensors.values()), 0
    for place in range(len(unpacker.tensors)):
        if place == len(unpacker.tensors) // 2:
            half(f"{received} of {total} bytes have come")
        memory = _bytes(unpacker.tensors[place])
        channel.receive_into(memory)
        digest.update(memory)
        received += memory.nbytes
    if channel.receive(_DIGEST_BYTES) != digest.digest():
        raise HandoverError("the state came with another SHA-256 than it was sent with")
    return value


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.reshape(-1).view(torch.uint8).numpy().data

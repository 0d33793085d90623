"""Which sockets of this process belong to one Gloo group, and how to shut exactly those down.

Gloo cannot abort a collective whose peer is stuck, but a shut-down socket fails it within milliseconds. The group
does not tell its sockets, so candidates are what appeared while it was built; of those, a socket is the group's only
if some peer holds the other end: both ends are exchanged in the group's first collective.
"""

import contextlib
import hashlib
import os
import socket
import stat
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from .communicator import Pending, ProcessGroupCommunicator

# Room for sockets that others in this process open while the group is built.
_SPARE_SLOTS = 64
_NARROW_BYTES = 4096


class SocketWatch:
    """Made before a group is built, it learns the group's sockets afterwards: ``ask`` first, then ``learn``."""

    def __init__(self) -> None:
        # By inode: the number of one that is closed meanwhile may be given to one of the group's.
        self._before = set(_socket_descriptors().values())
        # Inode, local and remote end by descriptor.
        self._candidates: dict[int, tuple[int, str, str]] = {}
        self._theirs: torch.Tensor | None = None
        self._answer: Pending | None = None
        self._answers = 1
        self._owned: dict[int, int] = {}
        self.peers: dict[str, int] = {}

    @property
    def owned(self) -> tuple[int, ...]:
        """Descriptors that belong to the group. ``peers`` tells which rank is at which remote end."""
        return tuple(self._owned)

    def ask(self, communicator: "ProcessGroupCommunicator") -> None:
        """Begin to exchange end points with all peers; the first collective of a new group."""
        for descriptor, inode in _socket_descriptors().items():
            if inode not in self._before and (ends := _ends(descriptor)):
                self._candidates[descriptor] = (inode, *ends)
        # Of a connection of this process with itself both ends are here: it is somebody else's.
        known = {(local, remote) for _, local, remote in self._candidates.values()}
        self._candidates = {
            descriptor: (inode, local, remote)
            for descriptor, (inode, local, remote) in self._candidates.items()
            if (remote, local) not in known
        }
        self._answers = communicator.size
        slots = communicator.size + _SPARE_SLOTS
        mine = torch.zeros(slots, dtype=torch.int64)
        for slot, (_, local, remote) in enumerate(list(self._candidates.values())[:slots]):
            mine[slot] = _fingerprint(local, remote)
        self._theirs = torch.zeros(slots * communicator.size, dtype=torch.int64)
        self._answer = communicator.all_gather(self._theirs, mine)

    def learn(self) -> None:
        """Wait for the answer and keep the sockets whose other end a peer holds.

        Raises:
            CommunicatorError: the group broke before.
        """
        answer, theirs = self._answer, self._theirs
        assert answer is not None
        assert theirs is not None
        # It holds the group, and the group holds this: whoever closes the group must be the last to hold it.
        self._answer = self._theirs = None
        answer.wait()
        slots = len(theirs) // self._answers
        holders = {value: place // slots for place, value in enumerate(theirs.tolist()) if value}
        owned = {}
        for descriptor, (inode, local, remote) in self._candidates.items():
            holder = holders.get(_fingerprint(remote, local))
            if holder is not None:
                owned[descriptor] = inode
                self.peers[remote] = holder
        self._owned = owned

    def shut_down(self) -> None:
        """Shut the group's sockets down; one that was closed and whose number was used again is left alone."""
        for twin in self._twins():
            with contextlib.suppress(OSError):
                twin.shutdown(socket.SHUT_RDWR)

    def narrow(self) -> None:
        """For rehearsals: so small a receive window that a transfer can be caught half done."""
        for twin in self._twins():
            with contextlib.suppress(OSError):
                twin.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _NARROW_BYTES)

    def _twins(self) -> Iterator[socket.socket]:
        for descriptor, inode in self._owned.items():
            with contextlib.suppress(OSError):
                if os.fstat(descriptor).st_ino == inode:
                    with socket.socket(fileno=os.dup(descriptor)) as twin:
                        yield twin


def _socket_descriptors() -> dict[int, int]:
    """Inode by descriptor, of all sockets of this process."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            status = os.fstat(int(name))
            if stat.S_ISSOCK(status.st_mode):
                found[int(name)] = status.st_ino
    return found


def _ends(descriptor: int) -> tuple[str, str] | None:
    """(local, remote) of a connected internet socket."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as twin:
            if twin.family not in (socket.AF_INET, socket.AF_INET6):
                return None
            local, remote = twin.getsockname(), twin.getpeername()
    except OSError:
        return None
    return f"{local[0]}:{local[1]}", f"{remote[0]}:{remote[1]}"


def _fingerprint(first: str, second: str) -> int:
    """63 bits of both ends in this order; never 0, which marks an empty slot."""
    digest = hashlib.blake2b(f"{first}|{second}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 1) | 1

"""Processes that a sentinel looks after: what the kernel says of them, and the means to end the right ones."""

import contextlib
import os
import signal
import threading
from collections.abc import Mapping

_STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "waiting for a device",
    "T": "stopped",
    "t": "traced",
    "Z": "gone",
    "X": "gone",
}
GONE = "gone"


class Guarded:
    """Handles of processes by name. A handle stays with its process, also when the process id is used again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[str, tuple[int, int]] = {}

    def only(self, pids: Mapping[str, int]) -> None:
        """Look after these, and no others. Who has ended already is left out."""
        with self._lock:
            for name in self._held.keys() - pids.keys():
                os.close(self._held.pop(name)[1])
            for name in pids.keys() - self._held.keys():
                with contextlib.suppress(ProcessLookupError):
                    self._held[name] = pids[name], os.pidfd_open(pids[name])

    def states(self) -> dict[str, str]:
        """What each of them is doing, in a word."""
        with self._lock:
            return {name: _state(pid, handle) for name, (pid, handle) in self._held.items()}

    def kill(self, *names: str) -> None:
        """SIGKILL these, as far as they are there."""
        with self._lock:
            for name in self._held.keys() & set(names):
                _signal(self._held[name][1], signal.SIGKILL)

    def kill_all(self) -> None:
        """SIGKILL everybody."""
        self.kill(*self._held)


def _signal(handle: int, number: int) -> bool:
    """Whether the process was there."""
    try:
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    return True


def _state(pid: int, handle: int) -> str:
    # While its handle says that it is there, its process id is its own.
    if not _signal(handle, 0):
        return GONE
    try:
        with open(f"/proc/{pid}/stat") as file:
            # The name of the program comes before, in brackets, and may hold anything.
            letter = file.read().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return GONE
    return _STATES.get(letter, letter)

"""Looks at what the ranks of a node are at, from outside of them."""

from collections.abc import Mapping

from ...monitors.progress import ProgressRecord
from ..rank.progress import Watched, watch


class Observer:
    """The boards of ranks by name; those that show none are looked for again."""

    def __init__(self) -> None:
        self._pids: dict[str, int] = {}
        self._boards: dict[str, Watched] = {}

    def only(self, pids: Mapping[str, int]) -> None:
        """Look at these processes, and at no others."""
        for name in self._boards.keys() - pids.keys():
            self._boards.pop(name).close()
        self._pids = dict(pids)

    def records(self, states: Mapping[str, str]) -> dict[str, ProgressRecord]:
        """What those are at that can be seen.

        Args:
            states: by name, what the kernel says of the processes that are there.
        """
        found = {}
        for name in self._pids.keys() & states.keys():
            board = self._boards.get(name) or watch(self._pids[name])
            if board is not None:
                self._boards[name] = board
                record = board.record(states[name])
                if record is not None:
                    found[name] = record
        return found

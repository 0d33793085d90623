"""Virtual time: what happens next."""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any


class Clock:
    """Events in the order of their time; what was planned first goes first among equals.

    Attributes:
        now: seconds since the run began.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._planned: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def after(self, delay: float, happen: Callable[..., None], *facts: Any) -> None:
        # Not by way of ``at``: it is called for every second event.
        self._count += 1
        heappush(self._planned, (self.now + delay, self._count, happen, facts))

    def at(self, when: float, happen: Callable[..., None], *facts: Any) -> None:
        self._count += 1
        heappush(self._planned, (when, self._count, happen, facts))

    def step(self) -> None:
        """Let the next event happen."""
        self.now, _, happen, facts = heappop(self._planned)
        happen(*facts)

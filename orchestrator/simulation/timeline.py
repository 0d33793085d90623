"""Virtual time: what happens when, and what is dropped if something else happens first."""

import heapq
from collections.abc import Callable
from itertools import count


class Timeline:
    """Things that will happen, in the order of time; those of one moment in the order in which they were said."""

    def __init__(self) -> None:
        self.now = 0.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = count()
        self._plans = 0

    def at(self, when: float, happen: Callable[[], None]) -> None:
        """It happens for certain; at once, if that is past."""
        heapq.heappush(self._queue, (max(when, self.now), next(self._sequence), happen))

    def replan(self) -> None:
        """Drop everything that was only planned."""
        self._plans += 1

    def plan(self, when: float | None, happen: Callable[[], None]) -> None:
        """It happens unless the plans are dropped before; None never."""
        if when is not None:
            plans = self._plans
            self.at(when, lambda: happen() if plans == self._plans else None)

    def next(self, horizon: float | None) -> Callable[[], None] | None:
        """What happens next, and time goes there; None if nothing does before the horizon."""
        if not self._queue or (horizon is not None and self._queue[0][0] > horizon):
            if horizon is not None:
                self.now = horizon
            return None
        self.now, _, happen = heapq.heappop(self._queue)
        return happen

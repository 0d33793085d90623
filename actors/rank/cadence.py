"""How often the state is saved in one place: as configured, or by what it costs here and how often it was needed."""

import time
from collections import deque
from statistics import median

from ...policies.cadence import Saving, YoungDaly

# Until the first save has shown what one costs. A power of two, as all that are decided.
FIRST = 4
_NEWEST = 15


class Cadence:
    """Steps from one save to the next.

    Each rank says in the census of a step what it would have, by its own costs; the shortest counts, for all of them.

    Args:
        every: as configured; None to find out.
        policy: that weighs costs against losses.

    Attributes:
        every: that holds now, the same on all members.
        setbacks: how often everybody had to go back to what was saved, as far as this rank knows.
    """

    def __init__(self, every: int | None, policy: YoungDaly | None = None) -> None:
        self.every = every or FIRST
        self.setbacks = 0
        self._policy = None if every else (policy or YoungDaly())
        self._took: deque[float] = deque(maxlen=_NEWEST)
        self._passed = 0.0
        self._wish, self._reason = 0, ""

    def wish(self, step: int, saves: int, seconds: float) -> int:
        """What this rank would have after ``step`` steps; 0 as long as it has no opinion.

        Args:
            saves: so many were begun here.
            seconds: that they took in all, those beside training too: on busy cores it pays for them as well.
        """
        if self._policy is None or not saves or not self._took:
            return 0
        usual = median(self._took)
        decided = self._policy.decide(Saving(seconds / saves, usual, self.setbacks, usual * step))
        self._wish, self._reason = decided.steps, decided.reason
        return decided.steps

    def agree(self, wished: int) -> str:
        """The shortest that some rank would have, 0 for none; says why it is another one than before, or nothing."""
        now = time.monotonic()
        if self._passed:
            self._took.append(max(now - self._passed, 1e-6))
        self._passed = now
        # What was agreed before does not count: those who have just joined do not know it.
        every = wished or FIRST
        if self._policy is None or every == self.every:
            return ""
        self.every = every
        if not wished:
            return f"every {every} steps: nobody who is left knows what one costs"
        return self._reason if every == self._wish else f"every {every} steps: a rank where one costs less asks for it"

"""What each replica has of one optimizer step, as a fluid: microbatches one after the other, at its own speed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ...policies.workload import Assignment
from .account import Saves, stalls

# Times are sums of many terms: a microbatch that ends now has ended.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Share:
    """One replica's part of the step in progress.

    Attributes:
        done: indices whose gradients it holds.
        queue: those that it computes from ``start`` on, in this order.
        start: when the first of the queue began, or will.
        seconds: one microbatch.
        repeats: the replica that it is the shadow of.
    """

    done: frozenset[int]
    queue: tuple[int, ...]
    start: float
    seconds: float
    repeats: int | None = None

    @property
    def ends(self) -> float:
        """When all of the queue is done."""
        return self.start + len(self.queue) * self.seconds

    def computed(self, now: float) -> int:
        """How many of the queue are done."""
        return min(len(self.queue), max(0, int((now - self.start) / self.seconds + _ROUNDING)))

    def at(self, now: float) -> "Share":
        """The same share, told from now."""
        count = self.computed(now)
        if not count:
            return self
        done = self.done | set(self.queue[:count])
        return replace(self, done=done, queue=self.queue[count:], start=self.start + count * self.seconds)

    def given(self, indices: Sequence[int], now: float, repeats: int | None) -> "Share":
        """The share when this is what the replica computes from now on."""
        here = self.at(now)
        wanted = frozenset(indices)
        if not here.done <= wanted:
            # A shadow that is let go begins anew.
            return Share(frozenset(), tuple(sorted(wanted)), now, self.seconds, repeats)
        kept = tuple(index for index in here.queue if index in wanted)
        more = tuple(sorted(wanted - here.done - set(kept)))
        start = here.start if kept and kept[0] == here.queue[0] else max(now, here.start)
        return Share(here.done, (*kept, *more), start, self.seconds, repeats)

    def paced(self, seconds: float, now: float) -> "Share":
        """The share when a microbatch takes so long from now on; what is done of the one under way counts."""
        here = self.at(now)
        share = max(0.0, (now - here.start) / here.seconds) if here.queue else 0.0
        start = here.start if now < here.start else now - share * seconds
        return replace(here, start=start, seconds=seconds)


def shares_of(plan: Assignment, begun: Mapping[int, float], seconds: Mapping[int, float]) -> dict[int, Share]:
    """The shares of a step that nobody has begun.

    Args:
        plan: of the step.
        begun: when each replica begins.
        seconds: one microbatch of each.
    """
    nothing: frozenset[int] = frozenset()
    return {
        replica: Share(nothing, plan.computed_by(replica), begun[replica], seconds[replica], plan.shadows.get(replica))
        for replica in plan.indices
    }


@dataclass(frozen=True)
class Steady:
    """Steps that follow each other undisturbed.

    Attributes:
        first: number of the first one.
        begun: when that begins.
        seconds: of one step.
        saves: taken between them.
    """

    first: int
    begun: float
    seconds: float
    saves: Sequence[Saves]

    def begins(self, step: int) -> float:
        """When a step begins, after the saves that are due before it."""
        return self.begun + (step - self.first) * self.seconds + stalls(self.saves, self.first, step)

    def commits(self, step: int) -> float:
        """When a step is committed."""
        return self.begins(step) + self.seconds

    def step_at(self, now: float) -> int:
        """The newest step that has begun, or the first."""
        low, high = self.first, self.first + 1
        while self.begins(high) <= now + _ROUNDING:
            low, high = high, high + 2 * (high - self.first)
        while high - low > 1:
            middle = (low + high) // 2
            if self.begins(middle) <= now + _ROUNDING:
                low = middle
            else:
                high = middle
        return low

"""What is done about a slow replica: nothing, a smaller quota, or its seat is given away when that pays.

A step ends with its slowest replica, so what a remedy gains is the difference of step times, over the training that is
looked at, less what the change of the world costs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite

from ..conf.bounds import refuse_below, refuse_nonpositive
from .workload.balanced import Balanced
from .workload.weighted import Weighted


class Remedy(StrEnum):
    """What is done about slow replicas."""

    OBSERVE = "observe"
    WEIGH = "smaller quota"
    EVICT = "evict"


@dataclass(frozen=True)
class SlowFacts:
    """What is known when replicas were confirmed to be slow.

    Attributes:
        microbatches: B.
        seconds: by replica, per microbatch; of all members.
        slow: replicas that are slow.
        spares: replicas' worth of ranks that could take their seats at once.
        minimum: fewest replicas that may train.
        remaining_steps: optimizer steps that are left; None if not known.

    Raises:
        ValueError: a slow replica that is none, nobody at all, or numbers that are no times, in one line.
    """

    microbatches: int
    seconds: Mapping[int, float]
    slow: frozenset[int]
    spares: int = 0
    minimum: int = 1
    remaining_steps: int | None = None

    def __post_init__(self) -> None:
        for replica, seconds in self.seconds.items():
            if not (isfinite(seconds) and seconds > 0):
                raise ValueError(f"replica {replica} takes {seconds!r} s for a microbatch; it must be a positive time")
        if not self.slow or self.slow - self.seconds.keys():
            raise ValueError(f"slow replicas {sorted(self.slow)} must be members, which are {sorted(self.seconds)}")
        refuse_below(1, microbatches=self.microbatches, minimum=self.minimum)
        refuse_below(0, spares=self.spares)


@dataclass(frozen=True)
class SlowDecision:
    """What is done, and why.

    Attributes:
        gain: seconds that training is expected to be earlier at the horizon.
        step: seconds that the microbatches of a step will then take.
    """

    remedy: Remedy
    replicas: tuple[int, ...]
    gain: float
    step: float
    reason: str


@dataclass(frozen=True)
class StragglerPolicy:
    """Takes what makes training earliest, if that is worth a change of the world.

    Args:
        horizon: how much training is looked at, in seconds; less if fewer steps are left.
        reopen: what a new generation costs, in seconds.
        replacing: what it costs beyond that to give a seat to another replica: state, model.
        worth: share of the horizon that a remedy must gain, or nothing is done.
        weighs: whether quotas may follow speeds.

    Raises:
        ValueError: numbers that cannot work, in one line.
    """

    horizon: float = 600.0
    reopen: float = 0.5
    replacing: float = 5.0
    worth: float = 0.02
    weighs: bool = True

    def __post_init__(self) -> None:
        refuse_nonpositive(horizon=self.horizon)
        refuse_below(0, reopen=self.reopen, replacing=self.replacing, worth=self.worth)
        if self.worth >= 1:
            raise ValueError(f"worth={self.worth:g} is a share of the horizon: no remedy could gain that much")

    def decide(self, facts: SlowFacts) -> SlowDecision:
        """What to do now."""
        now = self._balanced(facts.seconds, facts.microbatches)
        steps = self.horizon / now
        if facts.remaining_steps is not None:
            steps = min(steps, facts.remaining_steps)
        slow = tuple(sorted(facts.slow))
        options = [SlowDecision(Remedy.OBSERVE, slow, 0.0, now, "")]
        if self.weighs:
            then = self._weighted(facts.seconds, facts.microbatches)
            options.append(SlowDecision(Remedy.WEIGH, slow, (now - then) * steps - self.reopen, then, ""))
        options += self._evictions(facts, now, steps, slow)
        # Of two that gain the same, the one that changes less.
        best = max(options, key=lambda option: option.gain)
        least = self.worth * steps * now
        if best.gain < least or best.remedy is Remedy.OBSERVE:
            offered = max((option.gain for option in options[1:]), default=0.0)
            why = f"no remedy gains {least:.3g} s in the next {steps * now:.3g} s, the best one {offered:.3g} s"
            return SlowDecision(Remedy.OBSERVE, slow, 0.0, now, f"{_names(slow)} slow, and observed: {why}")
        why = f"microbatches of a step take {best.step:.4g} s instead of {now:.4g} s, which gains {best.gain:.3g} s"
        done = "owe less" if best.remedy is Remedy.WEIGH else "are shut out"
        said = f"{_names(slow)} slow, and {done}: {why} in the next {steps * now:.3g} s"
        return SlowDecision(best.remedy, slow, best.gain, best.step, said)

    def _evictions(self, facts: SlowFacts, now: float, steps: float, slow: tuple[int, ...]) -> Sequence[SlowDecision]:
        left = {replica: seconds for replica, seconds in facts.seconds.items() if replica not in facts.slow}
        if not left:
            return []
        usual = sorted(left.values())[len(left) // 2]
        taken = min(facts.spares, len(slow))
        newcomers = {max(facts.seconds) + 1 + place: usual for place in range(taken)}
        if len(left) + taken < facts.minimum:
            return []
        shares = self._weighted if self.weighs else self._balanced
        then = shares({**left, **newcomers}, facts.microbatches)
        cost = self.reopen + (self.replacing if taken else 0.0)
        return [SlowDecision(Remedy.EVICT, slow, (now - then) * steps - cost, then, "")]

    @staticmethod
    def _balanced(seconds: Mapping[int, float], microbatches: int) -> float:
        plan = Balanced().plan(list(seconds), microbatches).indices
        return max(len(plan[replica]) * each for replica, each in seconds.items())

    @staticmethod
    def _weighted(seconds: Mapping[int, float], microbatches: int) -> float:
        speeds = {replica: 1 / each for replica, each in seconds.items()}
        plan = Weighted(speeds).plan(list(seconds), microbatches).indices
        return max(len(plan[replica]) * each for replica, each in seconds.items())


def _names(slow: tuple[int, ...]) -> str:
    return f"replica {slow[0]} is" if len(slow) == 1 else f"replicas {', '.join(map(str, slow))} are"

"""What is done about a slow replica: nothing, a smaller quota, or its seat is given away when that pays.

A step ends with its slowest replica, so what a remedy gains is the difference of step times, over the training that is
looked at, less what the change of the world costs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite

from ..conf.bounds import refuse_below, refuse_nonpositive
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
        slow: replicas that are slow; none if those that were slow are so no more, and shares may follow that.
        dealt: by replica, the speeds that shares follow now, in microbatches per second; empty if all owe alike.
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
    dealt: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for replica, seconds in self.seconds.items():
            if not (isfinite(seconds) and seconds > 0):
                raise ValueError(f"replica {replica} takes {seconds!r} s for a microbatch; it must be a positive time")
        if self.slow - self.seconds.keys() or not (self.slow or self.dealt):
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
        evicts: whether a seat may be given away.

    Raises:
        ValueError: numbers that cannot work, in one line.
    """

    horizon: float = 600.0
    reopen: float = 0.5
    replacing: float = 5.0
    worth: float = 0.02
    weighs: bool = True
    evicts: bool = True

    def __post_init__(self) -> None:
        refuse_nonpositive(horizon=self.horizon)
        refuse_below(0, reopen=self.reopen, replacing=self.replacing, worth=self.worth)
        if self.worth >= 1:
            raise ValueError(f"worth={self.worth:g} is a share of the horizon: no remedy could gain that much")

    def decide(self, facts: SlowFacts) -> SlowDecision:
        """What to do now."""
        now = self._dealt(facts.dealt, facts.seconds, facts.microbatches)
        steps = self.horizon / now
        if facts.remaining_steps is not None:
            steps = min(steps, facts.remaining_steps)
        slow = tuple(sorted(facts.slow))
        who = _names(slow)
        if not (self.weighs or self.evicts):
            return SlowDecision(Remedy.OBSERVE, slow, 0.0, now, f"{who} slow, and observed: nothing else is wanted")
        options: list[SlowDecision] = []
        if self.weighs:
            then = self._dealt(_speeds(facts.seconds), facts.seconds, facts.microbatches)
            options.append(SlowDecision(Remedy.WEIGH, slow, (now - then) * steps - self.reopen, then, ""))
        if self.evicts and slow:
            options += self._evictions(facts, now, steps, slow)
        least = self.worth * steps * now
        # Of two that gain the same, the one that changes less.
        best = max(options, key=lambda option: option.gain, default=None)
        if best is None or best.gain < least or best.gain <= 0:
            offered = "there is none" if best is None else f"the best one {best.gain:.3g} s"
            why = f"no remedy gains {least:.3g} s in the next {steps * now:.3g} s, {offered}"
            return SlowDecision(Remedy.OBSERVE, slow, 0.0, now, f"{who} slow, and observed: {why}")
        why = f"microbatches of a step take {best.step:.4g} s instead of {now:.4g} s, which gains {best.gain:.3g} s"
        said = f"{who} slow, and {_done(best.remedy, slow)}: {why} in the next {steps * now:.3g} s"
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
        everybody = {**left, **newcomers}
        then = self._dealt(_speeds(everybody) if self.weighs else {}, everybody, facts.microbatches)
        cost = self.reopen + (self.replacing if taken else 0.0)
        return [SlowDecision(Remedy.EVICT, slow, (now - then) * steps - cost, then, "")]

    @staticmethod
    def _dealt(speeds: Mapping[int, float], seconds: Mapping[int, float], microbatches: int) -> float:
        """Seconds of a step whose shares follow ``speeds``."""
        plan = Weighted(speeds).plan(list(seconds), microbatches).indices
        return max(len(plan[replica]) * each for replica, each in seconds.items())


def straggler_policy(name: str, horizon: float) -> StragglerPolicy:
    """The policy of this name: ``observe``, ``weigh``, ``evict``, or ``auto`` for whichever of them gains most.

    Args:
        horizon: how much training is looked at, in seconds.

    Raises:
        ValueError: no policy has this name.
    """
    if name not in _POLICIES:
        raise ValueError(f"unknown straggler policy {name!r}; use one of: {', '.join(_POLICIES)}")
    weighs, evicts = _POLICIES[name]
    return StragglerPolicy(horizon, weighs=weighs, evicts=evicts)


_POLICIES: Mapping[str, tuple[bool, bool]] = {
    "observe": (False, False),
    "weigh": (True, False),
    "evict": (False, True),
    "auto": (True, True),
}


def _speeds(seconds: Mapping[int, float]) -> dict[int, float]:
    return {replica: 1 / each for replica, each in seconds.items()}


def _done(remedy: Remedy, slow: tuple[int, ...]) -> str:
    if not slow:
        return "all owe what they can do"
    one = len(slow) == 1
    if remedy is Remedy.WEIGH:
        return "owes less" if one else "owe less"
    return "is let go" if one else "are let go"


def _names(slow: tuple[int, ...]) -> str:
    if not slow:
        return "nobody is"
    return f"replica {slow[0]} is" if len(slow) == 1 else f"replicas {', '.join(map(str, slow))} are"

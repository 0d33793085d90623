"""Who is slow, for certain, and at what: computing, loading data, or communicating.

SCOUT's rules (arXiv 2608.11034): peers that do the same work are compared with each other, one-sided, since nobody is
blamed for being quick; all of them together are compared with their own past; and nothing is said before it was seen in
several rounds in a row, so a single pause of a garbage collection is no straggler.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import isfinite

from .consensus import ENOUGH, Agree, Attributed, Inconclusive, Verdict, median_and_scale, statistical

# A slow rank takes this many times the median, and this many seconds more.
SLOW_FACTOR = 1.1
SLOW_SECONDS = 2e-3
# The past of a group: clean rounds that are kept, those that it takes, and how much slower than they were is slow.
ROUNDS = 32
FEWEST = 5
BASELINE_FACTOR = 1.25
BASELINE_DISTANCE = 4 * 1.4826
# Rounds in a row in which a rank must have been slow.
CONFIRM = 3


class Part(StrEnum):
    """Of a microbatch."""

    COMPUTE = "computing"
    DATA = "loading data"
    COMMUNICATION = "communicating"


@dataclass(frozen=True)
class Times:
    """What one rank took in one round, in seconds.

    Attributes:
        compute: forward and backward of a microbatch, as it usually is in the round.
        data: the wait for its batch, likewise.
        communication: sending and receiving without the wait for those who come late, if that can be told; else 0.
    """

    compute: float
    data: float = 0.0
    communication: float = 0.0

    def of(self, part: Part) -> float:
        """Seconds of this part."""
        return {Part.COMPUTE: self.compute, Part.DATA: self.data, Part.COMMUNICATION: self.communication}[part]


@dataclass(frozen=True)
class Rules:
    """When slow is slow.

    Attributes:
        factor: a slow rank takes this many times the median of its peers.
        seconds: and this much more than it.
        confirm: rounds in a row in which it must have been so.
        baseline_factor: a group is slower than it was if its median is this many times that of its past, and those
            seconds more than it as well.

    Raises:
        ValueError: numbers that contradict each other, in one line.
    """

    factor: float = SLOW_FACTOR
    seconds: float = SLOW_SECONDS
    confirm: int = CONFIRM
    baseline_factor: float = BASELINE_FACTOR

    def __post_init__(self) -> None:
        for name in ("factor", "baseline_factor"):
            value = getattr(self, name)
            if not (isfinite(value) and value > 1):
                raise ValueError(f"rules.{name}={value!r} must be above 1: who takes the median is not slow")
        if not (isfinite(self.seconds) and self.seconds >= 0):
            raise ValueError(f"rules.seconds={self.seconds!r} must be a finite number of at least 0")
        if self.confirm < 1:
            raise ValueError(f"rules.confirm={self.confirm!r} must be at least 1: a round that is judged is one")
        if self.factor > self.baseline_factor:
            raise ValueError(
                f"rules.factor={self.factor:g} is above rules.baseline_factor={self.baseline_factor:g}: a group would "
                "count as slow before any of its ranks does"
            )


@dataclass(frozen=True)
class Seen:
    """What earlier rounds have shown; a value, so that it can be saved with the rest of a run.

    Attributes:
        streaks: by part and rank, in how many rounds in a row it was slow.
        past: by part, the medians of the last clean rounds, oldest first, in seconds.
        slower: by part, in how many rounds in a row the whole group was slower than its past.
    """

    streaks: Mapping[Part, Mapping[int, int]] = field(default_factory=dict)
    past: Mapping[Part, tuple[float, ...]] = field(default_factory=dict)
    slower: Mapping[Part, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Finding:
    """What a round says, confirmed by those before it.

    Attributes:
        verdicts: by part, who is slow at it.
        ratios: by rank that is named, how many times the median it takes at what it is slowest at.
        groupwide: by part, how many times slower than it was the whole group is; empty if it is not.
    """

    verdicts: Mapping[Part, Verdict]
    ratios: Mapping[int, float] = field(default_factory=dict)
    groupwide: Mapping[Part, float] = field(default_factory=dict)

    @property
    def ranks(self) -> Mapping[int, tuple[Part, ...]]:
        """Who is slow, and at what: several parts are a mixed straggler."""
        named: dict[int, tuple[Part, ...]] = {}
        for part, verdict in self.verdicts.items():
            for rank in verdict.ranks if isinstance(verdict, Attributed) else ():
                named[rank] = (*named.get(rank, ()), part)
        return dict(sorted(named.items()))


def slow(seconds: Mapping[int, float], rules: Rules | None = None) -> Verdict:
    """Who is far above the median of its peers, in one round.

    Args:
        seconds: by rank, for the same work.
        rules: when slow is slow.

    Raises:
        ValueError: a time that is not finite.
    """
    rules = rules or Rules()
    found = statistical(seconds)
    if isinstance(found, Agree):
        return found
    middle, _ = median_and_scale(list(seconds.values()))
    bound = max(middle * rules.factor, middle + rules.seconds)
    if isinstance(found, Inconclusive):
        return found if max(seconds.values()) > bound else Agree(seconds)
    late = tuple(rank for rank in found.ranks if seconds[rank] > bound)
    if not late:
        return Agree(seconds)
    told = ", ".join(f"rank {rank} takes {seconds[rank]:.4g} s" for rank in late)
    return Attributed(late, f"{told}, the median of {len(seconds)} peers is {middle:.4g} s", seconds)


def observe(seen: Seen, times: Mapping[int, Times], rules: Rules | None = None) -> tuple[Seen, Finding]:
    """One more round.

    Ranks that were slow at a part are left out of its past, so the past stays that of healthy peers.

    Args:
        seen: of the rounds before; ``Seen()`` at first, or when the world has changed.
        times: by rank, all that took part.
        rules: when slow is slow.

    Returns:
        What is known now, and who has been slow in ``rules.confirm`` rounds in a row.

    Raises:
        ValueError: a time that is negative or not finite.
    """
    rules = rules or Rules()
    _refuse(times)
    streaks, past, slower = dict(seen.streaks), dict(seen.past), dict(seen.slower)
    verdicts: dict[Part, Verdict] = {}
    ratios: dict[int, float] = {}
    groupwide: dict[Part, float] = {}
    for part in Part:
        seconds = {rank: held.of(part) for rank, held in times.items()}
        now = slow(seconds, rules)
        late = now.ranks if isinstance(now, Attributed) else ()
        held = seen.streaks.get(part, {})
        streaks[part] = {rank: held.get(rank, 0) + 1 for rank in late}
        verdicts[part] = _confirmed(now, streaks[part], rules.confirm)
        healthy = [value for rank, value in seconds.items() if rank not in late]
        if len(healthy) < ENOUGH:
            continue
        middle, _ = median_and_scale(healthy)
        usual = _usual(past.get(part, ()))
        distance = max(usual[1], rules.seconds) if usual is not None else 0.0
        if usual is not None and middle > max(rules.baseline_factor * usual[0], usual[0] + distance):
            slower[part] = slower.get(part, 0) + 1
            if slower[part] >= rules.confirm and usual[0]:
                groupwide[part] = middle / usual[0]
        else:
            slower[part] = 0
            past[part] = (*past.get(part, ()), middle)[-ROUNDS:]
        named = verdicts[part]
        for rank in named.ranks if isinstance(named, Attributed) else ():
            ratios[rank] = max(ratios.get(rank, 0.0), seconds[rank] / max(middle, 1e-9))
    return Seen(streaks, past, slower), Finding(verdicts, ratios, groupwide)


def _confirmed(now: Verdict, streaks: Mapping[int, int], confirm: int) -> Verdict:
    if not isinstance(now, Attributed):
        return now
    ranks = tuple(rank for rank in now.ranks if streaks[rank] >= confirm)
    if not ranks:
        return Agree(now.evidence)
    return Attributed(ranks, f"{now.reason}; so in at least {confirm} rounds in a row", now.evidence)


def _usual(past: tuple[float, ...]) -> tuple[float, float] | None:
    """The median of the past, and how far from it is far; None before there is a past."""
    if len(past) < FEWEST:
        return None
    middle = sorted(past)[len(past) // 2]
    spread = sorted(abs(value - middle) for value in past)[len(past) // 2]
    return middle, BASELINE_DISTANCE * spread


def _refuse(times: Mapping[int, Times]) -> None:
    for rank, held in times.items():
        for part in Part:
            if not (isfinite(held.of(part)) and held.of(part) >= 0):
                raise ValueError(f"rank {rank} took {held.of(part)} s for {part.value}; a time is at least 0")


def renewed(seen: Seen) -> Seen:
    """What is still known when ranks or their shares have changed: the past of the group, and no rank's."""
    return replace(seen, streaks={}, slower={})

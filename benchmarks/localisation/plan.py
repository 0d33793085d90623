"""What will go wrong in a campaign, on whom and how badly, drawn from a seed before it begins."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import cycle, islice, product

RANKS = 4
# Everything happens in a step after the one in which all wait for each other.
FIRST = 3


class Family(StrEnum):
    """What is to be found out about a case in one and the same way."""

    HANG = "hang"
    NUMERIC = "numeric"
    STRAGGLER = "straggler"
    HEALTHY = "healthy"


class Kind(StrEnum):
    """What goes wrong."""

    STOPPED = "stopped process"
    LOCK = "lock held for ever"
    LOADER = "data loader that sleeps"
    COLLECTIVE = "another collective"
    WEIGHT = "weight"
    MOMENT = "optimizer moment"
    ACTIVATION = "activation"
    GRADIENT = "gradient"
    COMPUTING = "slow computing"
    LOADING = "slow data loader"
    HEALTHY = "nothing"


KINDS = {
    Family.HANG: (Kind.STOPPED, Kind.LOCK, Kind.LOADER, Kind.COLLECTIVE),
    Family.NUMERIC: (Kind.WEIGHT, Kind.MOMENT, Kind.ACTIVATION, Kind.GRADIENT),
    Family.STRAGGLER: (Kind.COMPUTING, Kind.LOADING),
    Family.HEALTHY: (Kind.HEALTHY,),
}
# Of a float32: a low, a middle and a high bit of the significand, its sign, and two of the exponent. One more of the
# exponent may well end in something that is not finite, which is found without any peer.
BITS = (0, 11, 22, 31, 23, 25)
PERCENT = (5, 10, 20, 30, 50)
INTERVALS = (1, 4, 16)
# Steps that a case has, after which it counts as missed, and those after it that must be clean.
HANG_STEPS, SLOW_STEPS, CLEAN_STEPS, HEALTHY_STEPS = 3, 48, 28, 40
# Cases in one launch.
_TOGETHER = {Family.HANG: 8, Family.NUMERIC: 12, Family.STRAGGLER: 5, Family.HEALTHY: 1}


@dataclass(frozen=True)
class Case:
    """One fault.

    Attributes:
        step: in which it happens; all wait for each other in the one before.
        replica: to whom.
        recurs: whether it happens in every step from there on.
        bit: that is flipped.
        percent: by which it is slower.
        pick: in [0, 1), which of the numbers is hit.
    """

    kind: Kind
    step: int
    replica: int
    recurs: bool = True
    bit: int = 0
    percent: int = 0
    pick: float = 0.0

    @property
    def gate(self) -> int:
        """The step in which all wait for each other."""
        return self.step - 1


@dataclass(frozen=True)
class Launch:
    """One training in which cases come one after the other.

    Attributes:
        interval: steps from one check of the numbers to the next.
        steps: in all.
    """

    name: str
    family: Family
    interval: int
    cases: tuple[Case, ...]
    steps: int

    @property
    def gates(self) -> tuple[int, ...]:
        """Steps in which all wait for each other: before each case, and where numbers were wrong before the end."""
        last = (self.steps - 1,) if self.family is Family.NUMERIC else ()
        return (*(case.gate for case in self.cases), *last)


@dataclass(frozen=True)
class Size:
    """How many cases of each family."""

    hangs: int = 104
    numeric: int = 312
    once: int = 48
    stragglers: int = 60
    healthy: int = 32

    def cut(self, most: int) -> "Size":
        """No more than so many of each."""
        return Size(*(min(most, held) for held in vars(self).values()))


def draw(seed: int, size: Size, families: Sequence[Family] = tuple(Family)) -> tuple[Launch, ...]:
    """All launches, each of cases of one interval."""
    launches: list[Launch] = []
    for family in families:
        rng = random.Random(f"{seed} {family}")
        match family:
            case Family.HANG:
                kinds = [(kind, True, 0, 0, 16) for kind in islice(cycle(KINDS[family]), size.hangs)]
            case Family.NUMERIC:
                ways = list(product(KINDS[family], BITS, INTERVALS))
                recurring = [(kind, True, bit, 0, every) for kind, bit, every in islice(cycle(ways), size.numeric)]
                # What is in the weights once stays there: only what is computed comes and goes.
                gone = list(product((Kind.ACTIVATION, Kind.GRADIENT), BITS, INTERVALS))
                passing = [(kind, False, bit, 0, every) for kind, bit, every in islice(cycle(gone), size.once)]
                kinds = [*recurring, *passing]
            case Family.STRAGGLER:
                slow = list(product(KINDS[family], PERCENT))
                kinds = [(kind, True, 0, percent, 0) for kind, percent in islice(cycle(slow), size.stragglers)]
            case Family.HEALTHY:
                kinds = [(Kind.HEALTHY, True, 0, 0, every) for every in islice(cycle(INTERVALS), size.healthy)]
        launches += _launched(family, kinds, rng)
    return tuple(launches)


def _launched(family: Family, ways: Sequence[tuple[Kind, bool, int, int, int]], rng: random.Random) -> list[Launch]:
    """Cases of one interval together, in an order that follows from the seed."""
    launches = []
    for every in sorted({way[-1] for way in ways}):
        here = [way for way in ways if way[-1] == every]
        count = _TOGETHER[family]
        for place in range(0, len(here), count):
            step, cases = FIRST, []
            for kind, recurs, bit, percent, _ in here[place : place + count]:
                cases.append(Case(kind, step, rng.randrange(RANKS), recurs, bit, percent, rng.random()))
                step += length(family, every)
            launches.append(Launch(f"{family}-{every}-{place // count}", family, every, tuple(cases), step))
    return launches


def length(family: Family, interval: int) -> int:
    """Steps from one case to the next."""
    match family:
        case Family.HANG:
            return HANG_STEPS
        case Family.NUMERIC:
            # Three checks: each takes three of four replicas in.
            return 3 * interval + 4
        case Family.STRAGGLER:
            return SLOW_STEPS + CLEAN_STEPS
        case Family.HEALTHY:
            return HEALTHY_STEPS

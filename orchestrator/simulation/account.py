"""Where the time of a simulated run went. Every second belongs to exactly one cause."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum


class Cause(StrEnum):
    """What a second was spent on."""

    TRAINING = "training"
    SMALLER = "smaller world"
    SLOW = "slow ranks"
    SAVING = "saving"
    RECOVERY = "recovery"
    WAITING = "waiting for capacity"
    REDONE = "steps done again"
    UNFINISHED = "unfinished step"


@dataclass(frozen=True)
class Saves:
    """A way to save: where to, every how many steps, and for how many seconds that holds training up."""

    source: str
    every: int
    stall: float

    def due(self, first: int, last: int) -> int:
        """How many saves there are after the steps ``first + 1`` to ``last`` are applied."""
        return last // self.every - first // self.every


def stalls(saves: Sequence[Saves], first: int, last: int) -> float:
    """Seconds that the saves after the steps ``first + 1`` to ``last`` take."""
    return sum(one.stall * one.due(first, last) for one in saves)


@dataclass(frozen=True)
class Stretch:
    """Consecutive committed steps that went alike.

    Attributes:
        first: number of the first step.
        steps: how many.
        microbatches: that each of them summed.
        each: seconds of one step by cause.
        once: seconds that came before the first of them, by cause.
        saves: taken between them.
    """

    first: int
    steps: int
    microbatches: int
    each: Mapping[Cause, float]
    once: Mapping[Cause, float]
    saves: Sequence[Saves] = ()

    def seconds(self) -> dict[Cause, float]:
        """All of its seconds by cause."""
        spent = defaultdict(float, self.once)
        for cause, value in self.each.items():
            spent[cause] += value * self.steps
        spent[Cause.SAVING] += stalls(self.saves, self.first, self.first + self.steps - 1)
        return spent


class Account:
    """The committed steps, and what became of the time."""

    def __init__(self) -> None:
        self._stretches: list[Stretch] = []
        self._lost: dict[Cause, float] = defaultdict(float)
        self.microbatches_redone = 0

    def add(self, stretch: Stretch) -> None:
        """Steps that follow on the last ones."""
        if stretch.steps:
            self._stretches.append(stretch)

    def spend(self, cause: Cause, seconds: float) -> None:
        """Seconds in which no step was committed that counts."""
        self._lost[cause] += seconds

    def roll_back(self, step: int) -> None:
        """The steps from ``step`` on are undone: their time is spent on nothing."""
        while self._stretches and self._stretches[-1].first + self._stretches[-1].steps > step:
            last = self._stretches.pop()
            kept = max(0, step - last.first)
            gone = sum(last.seconds().values())
            if kept:
                rest = replace(last, steps=kept)
                self._stretches.append(rest)
                gone -= sum(rest.seconds().values())
            self.microbatches_redone += (last.steps - kept) * last.microbatches
            self.spend(Cause.REDONE, gone)

    @property
    def steps(self) -> int:
        """Committed ones."""
        return sum(one.steps for one in self._stretches)

    @property
    def microbatches(self) -> int:
        """Summed by the committed steps."""
        return sum(one.steps * one.microbatches for one in self._stretches)

    def seconds(self) -> dict[Cause, float]:
        """All seconds by cause."""
        spent = dict.fromkeys(Cause, 0.0)
        for source in (self._lost, *(one.seconds() for one in self._stretches)):
            for cause, value in source.items():
                spent[cause] += value
        return spent

"""Which runs the study has: faults, their strengths, and seeds to calibrate on and to evaluate on."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from everstep.benchmarks.instability.faults import Fault

Kind = Literal["healthy", "low_precision", "learning_rate", "rate_jump", "combined", "router", "bit_flip"]
Part = Literal["development", "evaluation"]
# What a monitor is there for; the flipped bit is a negative control.
KINDS: tuple[Kind, ...] = ("low_precision", "learning_rate", "combined")
# A seed has one of them, in turn.
STRENGTHS: Mapping[Kind, tuple[Fault, ...]] = {
    "healthy": (Fault(),),
    "low_precision": (Fault(error=100.0),),
    "learning_rate": (Fault(rate=4.0), Fault(rate=8.0), Fault(rate=16.0)),
    "rate_jump": (Fault(rate=4.0, jumps=True), Fault(rate=8.0, jumps=True), Fault(rate=16.0, jumps=True)),
    "combined": (Fault(error=100.0, rate=4.0),),
    "router": (Fault(balance=-0.3),),
    "bit_flip": (Fault(flip=True),),
}
SEEDS: Mapping[Part, Mapping[Kind, int]] = {
    "development": {
        "healthy": 6,
        "low_precision": 2,
        "learning_rate": 3,
        "rate_jump": 3,
        "combined": 2,
        "router": 1,
        "bit_flip": 1,
    },
    "evaluation": {
        "healthy": 10,
        "low_precision": 6,
        "learning_rate": 6,
        "rate_jump": 6,
        "combined": 6,
        "router": 5,
        "bit_flip": 5,
    },
}
# So far apart that no seed is in both.
_FIRST: Mapping[Part, int] = {"development": 1000, "evaluation": 100}


@dataclass(frozen=True)
class Run:
    """One training."""

    kind: Kind
    seed: int

    @property
    def fault(self) -> Fault:
        """What is wrong with it."""
        strengths = STRENGTHS[self.kind]
        return strengths[self.seed % len(strengths)]


def runs(part: Part) -> Iterator[Run]:
    """Those of a part, kinds in turn, so that a study that is cut short has some of each."""
    seeds = SEEDS[part]
    for place in range(max(seeds.values())):
        yield from (Run(kind, _FIRST[part] + place) for kind, count in seeds.items() if place < count)


def part_of(run: Run) -> Part:
    """Where a run belongs."""
    return "development" if run.seed >= _FIRST["development"] else "evaluation"

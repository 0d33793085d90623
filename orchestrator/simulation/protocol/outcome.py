"""What came of simulated runs."""

from collections import Counter
from dataclasses import dataclass, field

from .faults import COUNTED


@dataclass
class Outcome:
    """What came of some seeds.

    Attributes:
        seeds: how many were played.
        seen: how often what happened.
        hits: faults, by kind and by the point of the protocol at which they hit.
        violations: by seed, each with its story.
        seconds: that a core took for it.
    """

    seeds: int = 0
    seen: Counter[str] = field(default_factory=Counter)
    hits: Counter[tuple[str, str]] = field(default_factory=Counter)
    violations: dict[int, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def faults(self) -> int:
        """Crashes, stops and partitions; what is lost, late or doubled is not counted."""
        return sum(number for (kind, _), number in self.hits.items() if kind in COUNTED)

    def add(self, other: "Outcome") -> None:
        self.seeds += other.seeds
        self.seen.update(other.seen)
        self.hits.update(other.hits)
        self.violations |= other.violations
        self.seconds += other.seconds

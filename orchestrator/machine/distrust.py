"""What is gathered to find out whether the ranks still hold what they should, and what follows if they do not."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from immutables import Map

from ...actors.evidence import Check
from ...policies.world import Generation


@dataclass(frozen=True)
class Gathered:
    """Evidence of one kind, of ranks of one coordinate.

    Attributes:
        among: replicas that bring it.
        brought: by replica, signatures by what they are of; the same object where they are equal.
        agreed: whether all of it is here and nobody differs; then it is not kept.
    """

    among: frozenset[int]
    brought: Map[int, Mapping[str, int]] = field(default_factory=Map)
    agreed: bool = False

    @property
    def missing(self) -> frozenset[int]:
        """Replicas whose evidence has not come."""
        return self.among.difference(self.brought)

    @property
    def complete(self) -> bool:
        """Whether all of it is here; to ask costs the same in a world of any size until it may be so."""
        return len(self.brought) >= len(self.among) and not self.missing


@dataclass(frozen=True)
class OpenCheck:
    """A check whose evidence comes in.

    Attributes:
        behind: members that may still bring some: they have not taken the step after the one that follows.
        groups: by kind of evidence and coordinate, what has come.
        uncovered: what it cannot look at, by name.
    """

    behind: Map[str, None]
    groups: Map[tuple[Check, int], Gathered] = field(default_factory=Map)
    uncovered: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Norms:
    """How large what members add to a step is.

    Attributes:
        at: generation and step of the check that comes in.
        brought: by member, its largest |gradient| there.
        above: by member, in how many checks in a row it was far above its peers; who was not is left out.
    """

    at: tuple[Generation, int] | None = None
    brought: Map[str, float] = field(default_factory=Map)
    above: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Rollback:
    """Everybody is to go back, since what they hold cannot be trusted.

    Attributes:
        kind: what was found.
        reason: one line.
        to: the newest state that is trusted, by its steps; the saved one that is not younger is taken, or the start.
        opened: the generation in which they do; None until it is opened.
    """

    kind: str
    reason: str
    to: int
    opened: Generation | None = None

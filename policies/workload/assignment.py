"""What a workload policy decides, and what it is asked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ..world import Progress


class Contradiction(ValueError):
    """What replicas have of a step contradicts itself, or each other; one line.

    Args:
        text: which microbatches, and how.
        replicas: those that say so.
    """

    def __init__(self, text: str, replicas: Sequence[int]) -> None:
        super().__init__(text)
        self.replicas = tuple(replicas)


@dataclass(frozen=True)
class Assignment:
    """The indices that every replica contributes to one step; with the dropped ones they are 0..B-1, each once.

    Attributes:
        indices: by replica id, ascending; a replica may owe nothing, and a shadow contributes nothing.
        reason: one line that says why.
        shadows: shadow -> the replica that it repeats, which is none itself. What it computes is zeroed at the
            reduction, unless a later assignment gives it a share of its own.
        dropped: indices that nobody contributes; only a policy that is not exact drops any.
    """

    indices: Mapping[int, tuple[int, ...]]
    reason: str
    shadows: Mapping[int, int] = field(default_factory=dict)
    dropped: tuple[int, ...] = ()

    def computed_by(self, replica: int) -> tuple[int, ...]:
        """The indices that a replica computes: its own, or those that it repeats."""
        return self.indices[self.shadows.get(replica, replica)]


class WorkloadPolicy(Protocol):
    """Gives the B microbatches of a step to replicas.

    Attributes:
        exact: whether every step sums every microbatch, whoever is lost.
        by_speed: whether it wants to be ``given`` speeds.
    """

    exact: bool = True
    by_speed: bool = False

    def given(self, speeds: Mapping[int, float]) -> "WorkloadPolicy":
        """This policy, going by these speeds if it goes by any.

        Args:
            speeds: replica -> microbatches per second.
        """
        return self

    def plan(self, replicas: Sequence[int], microbatches: int) -> Assignment:
        """The assignment of a whole step. Everybody computes it alone, so it depends on nothing else."""
        ...

    def extend(self, progress: Mapping[int, Progress], microbatches: int) -> Assignment:
        """The assignment of a step in progress: survivors keep what they have, the missing is given out.

        Raises:
            Contradiction: the facts contradict each other.
            ValueError: nobody is left.
        """
        ...

"""Which replica computes which microbatches. Pure: facts in, an assignment with its reason out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from .world import Progress


@dataclass(frozen=True)
class Assignment:
    """The indices that every replica contributes to one step; together they are 0..B-1, each once.

    Attributes:
        indices: by replica id, ascending; a replica may owe nothing.
        reason: one line that says why.
    """

    indices: Mapping[int, tuple[int, ...]]
    reason: str


class WorkloadPolicy(Protocol):
    """Gives the B microbatches of a step to replicas."""

    def plan(self, replicas: Sequence[int], microbatches: int) -> Assignment:
        """The assignment of a whole step. Everybody computes it alone, so it depends on nothing else."""
        ...

    def extend(self, progress: Mapping[int, Progress], microbatches: int) -> Assignment:
        """The assignment of a step in progress: survivors keep what they have, the missing is given out."""
        ...


class Balanced:
    """Quotas differ by at most one: ⌊B/W⌋ or ⌈B/W⌉ microbatches each, as contiguous ranges."""

    def plan(self, replicas: Sequence[int], microbatches: int) -> Assignment:
        _refuse_nobody(replicas)
        ordered = sorted(replicas)
        base, larger = divmod(microbatches, len(ordered))
        indices: dict[int, tuple[int, ...]] = {}
        start = 0
        for place, replica in enumerate(ordered):
            stop = start + base + (place < larger)
            indices[replica] = tuple(range(start, stop))
            start = stop
        return Assignment(indices, f"{microbatches} microbatches over {len(ordered)} replicas")

    def extend(self, progress: Mapping[int, Progress], microbatches: int) -> Assignment:
        _refuse_nobody(tuple(progress))
        kept = {replica: held.done | held.owed for replica, held in progress.items()}
        claimed = sorted(index for indices in kept.values() for index in indices)
        if len(claimed) != len(set(claimed)):
            doubled = sorted({index for index in claimed if claimed.count(index) > 1})
            raise ValueError(f"microbatches {doubled} are held by more than one replica")
        if claimed and not (claimed[0] >= 0 and claimed[-1] < microbatches):
            raise ValueError(f"microbatches {claimed} are not all in 0..{microbatches - 1}")
        missing = sorted(set(range(microbatches)) - set(claimed))
        remaining = {replica: len(held.owed) for replica, held in progress.items()}
        given: dict[int, list[int]] = {replica: [] for replica in progress}
        for index in missing:
            idlest = min(remaining, key=lambda replica: (remaining[replica], replica))
            given[idlest].append(index)
            remaining[idlest] += 1
        indices = {replica: tuple(sorted(kept[replica] | set(given[replica]))) for replica in sorted(progress)}
        return Assignment(indices, f"{len(missing)} lost microbatches over {len(progress)} replicas")


def workload_policy(name: str) -> WorkloadPolicy:
    """The policy of this name.

    Raises:
        ValueError: no policy has this name.
    """
    if name == "balanced":
        return Balanced()
    raise ValueError(f"unknown workload policy {name!r}; use one of: balanced")


def _refuse_nobody(replicas: Sequence[int]) -> None:
    if not replicas:
        raise ValueError("a step needs at least one replica")

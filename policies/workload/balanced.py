"""Everybody computes as much as everybody else."""

from collections.abc import Mapping, Sequence

from ..world import Progress
from .assignment import Assignment, WorkloadPolicy
from .sharing import given_out, in_blocks, in_order, missing_from


class Balanced(WorkloadPolicy):
    """Quotas differ by at most one: ⌊B/W⌋ or ⌈B/W⌉ microbatches each, as contiguous ranges."""

    def plan(self, replicas: Sequence[int], microbatches: int) -> Assignment:
        ordered = in_order(replicas)
        base, larger = divmod(microbatches, len(ordered))
        sizes = (base + (place < larger) for place in range(len(ordered)))
        return Assignment(in_blocks(ordered, sizes), f"{microbatches} microbatches over {len(ordered)} replicas")

    def extend(self, progress: Mapping[int, Progress], microbatches: int) -> Assignment:
        ordered = in_order(progress)
        kept = {replica: held.done | held.owed for replica, held in progress.items()}
        missing = missing_from(kept, microbatches)
        given = given_out(missing, {replica: len(held.owed) for replica, held in progress.items()})
        indices = {replica: tuple(sorted(kept[replica] | given[replica])) for replica in ordered}
        return Assignment(indices, f"{len(missing)} lost microbatches over {len(ordered)} replicas")

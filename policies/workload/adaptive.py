"""The batch shrinks with the world: what everybody else does, to compare with."""

from collections.abc import Mapping, Sequence

from ..world import Progress
from .assignment import Assignment, WorkloadPolicy
from .balanced import Balanced
from .sharing import in_blocks, in_order, missing_from


class AdaptiveWorld(WorkloadPolicy):
    """Survivors go on with what they have, and the microbatches of the dead are dropped. For ablations only.

    It is not exact: after a loss a step sums fewer microbatches, so gradients are noisier and weights differ.

    Args:
        initial: replicas among which B is shared; as many as are missing, so many shares are dropped from every
            step. With 1 only the step of the loss shrinks, and later ones share all B among the survivors.

    Raises:
        ValueError: fewer than one.
    """

    exact = False

    def __init__(self, initial: int = 1) -> None:
        if initial < 1:
            raise ValueError(f"an initial world of {initial} replicas must have at least 1")
        self._initial = initial

    def plan(self, replicas: Sequence[int], microbatches: int) -> Assignment:
        ordered = in_order(replicas)
        shares = Balanced().plan(range(max(self._initial, len(ordered))), microbatches).indices
        sizes = [len(shares[place]) for place in range(len(ordered))]
        return _without(in_blocks(ordered, sizes), tuple(range(sum(sizes), microbatches)))

    def extend(self, progress: Mapping[int, Progress], microbatches: int) -> Assignment:
        kept = {replica: progress[replica].done | progress[replica].owed for replica in in_order(progress)}
        missing = tuple(missing_from(kept, microbatches))
        return _without({replica: tuple(sorted(indices)) for replica, indices in kept.items()}, missing)


def _without(indices: Mapping[int, tuple[int, ...]], dropped: tuple[int, ...]) -> Assignment:
    reason = f"an adaptive world is not exact: {len(dropped)} microbatches are dropped"
    return Assignment(indices, reason, dropped=dropped)

"""The batch shrinks with the world: what everybody else does, to compare with."""

from collections.abc import Mapping, Sequence

from ..world import Progress
from .assignment import Assignment
from .balanced import Balanced
from .sharing import in_blocks, in_order, missing_from


class AdaptiveWorld:
    """Survivors go on with what they have, and the microbatches of the dead are dropped. For ablations only.

    It is not exact: after a loss a step sums fewer microbatches, so gradients are noisier and weights differ.

    Args:
        quota: microbatches that every replica contributes to each step, so that later steps shrink too; None: only
            the step of the loss does, later ones share all B among the survivors.

    Raises:
        ValueError: the quota is not positive.
    """

    exact = False

    def __init__(self, quota: int | None = None) -> None:
        if quota is not None and quota < 1:
            raise ValueError(f"quota {quota} must be at least 1 microbatch of every replica")
        self._quota = quota

    def plan(self, replicas: Sequence[int], microbatches: int) -> Assignment:
        if self._quota is None:
            return _without(Balanced().plan(replicas, microbatches).indices, ())
        ordered = in_order(replicas)
        starts = (self._quota * place for place in range(len(ordered)))
        sizes = [max(0, min(self._quota, microbatches - start)) for start in starts]
        return _without(in_blocks(ordered, sizes), tuple(range(sum(sizes), microbatches)))

    def extend(self, progress: Mapping[int, Progress], microbatches: int) -> Assignment:
        kept = {replica: progress[replica].done | progress[replica].owed for replica in in_order(progress)}
        missing = tuple(missing_from(kept, microbatches))
        return _without({replica: tuple(sorted(indices)) for replica, indices in kept.items()}, missing)


def _without(indices: Mapping[int, tuple[int, ...]], dropped: tuple[int, ...]) -> Assignment:
    reason = f"an adaptive world is not exact: {len(dropped)} microbatches are dropped"
    return Assignment(indices, reason, dropped=dropped)

"""What workload policies share: who is there, what is missing, and who would be done with it soonest."""

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set

from .assignment import Contradiction


def in_order(replicas: Iterable[int]) -> list[int]:
    """Replicas, ascending.

    Raises:
        ValueError: there is none, or one of them is named twice.
    """
    ordered = sorted(replicas)
    if not ordered:
        raise ValueError("a step needs at least one replica")
    if len(ordered) > len(set(ordered)):
        raise ValueError(f"replicas {ordered} are not distinct")
    return ordered


def in_blocks(replicas: Sequence[int], sizes: Iterable[int]) -> dict[int, tuple[int, ...]]:
    """One contiguous range of indices each, in the order of the replicas."""
    blocks: dict[int, tuple[int, ...]] = {}
    start = 0
    for replica, size in zip(replicas, sizes, strict=True):
        blocks[replica] = tuple(range(start, start + size))
        start += size
    return blocks


def missing_from(kept: Mapping[int, Set[int]], microbatches: int) -> list[int]:
    """The indices that nobody keeps, ascending.

    Raises:
        Contradiction: an index is kept twice, or is none of the step's.
    """
    claimed = frozenset[int]().union(*kept.values())
    if len(claimed) < sum(map(len, kept.values())):
        claims = Counter(index for indices in kept.values() for index in indices)
        doubled = sorted(index for index, times in claims.items() if times > 1)
        holders = sorted(replica for replica, indices in kept.items() if not indices.isdisjoint(doubled))
        raise Contradiction(f"microbatches {doubled} are held by more than one of replicas {holders}", holders)
    missing = [index for index in range(microbatches) if index not in claimed]
    if len(missing) + len(claimed) > microbatches:
        strange = {index for index in claimed if not 0 <= index < microbatches}
        holders = sorted(replica for replica, indices in kept.items() if not strange.isdisjoint(indices))
        raise Contradiction(
            f"microbatches {sorted(strange)} of replicas {holders} are not all in 0..{microbatches - 1}", holders
        )
    return missing


def soonest(
    owed: Mapping[int, int], speeds: Mapping[int, float] | None = None, last: Collection[int] = ()
) -> Iterator[int]:
    """Who takes the next index, and the next, without end: always whoever would be done with it first.

    This makes the time until all are done as short as it can be. Ties go to the lower id.

    Args:
        owed: microbatches still to compute, by replica.
        speeds: microbatches per second, by replica; all alike if None.
        last: replicas that lose ties to the others.
    """

    def turn(replica: int, ahead: int) -> tuple[float, bool, int, int]:
        speed = 1.0 if speeds is None else speeds[replica]
        return (ahead + 1) / speed, replica in last, replica, ahead

    turns = [turn(replica, ahead) for replica, ahead in owed.items()]
    heapq.heapify(turns)
    while True:
        *_, replica, ahead = turns[0]
        yield replica
        heapq.heapreplace(turns, turn(replica, ahead + 1))


def given_out(
    missing: Iterable[int],
    owed: Mapping[int, int],
    speeds: Mapping[int, float] | None = None,
    last: Collection[int] = (),
) -> dict[int, set[int]]:
    """The missing indices by replica, each to whoever is done with it ``soonest``."""
    given: dict[int, set[int]] = {replica: set() for replica in owed}
    for index, replica in zip(missing, soonest(owed, speeds, last), strict=False):
        given[replica].add(index)
    return given

"""A slow replica owes less."""

import math
import statistics
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from ..world import Progress
from .assignment import Assignment, WorkloadPolicy
from .sharing import given_out, in_blocks, in_order, missing_from, soonest


class Weighted(WorkloadPolicy):
    """Quotas by measured speed, such that the last replica is done as early as it can be.

    Every rank plans alone, so all of them must be given the same speeds. These are rounded to three significant
    digits, more than a measurement is worth. With equal speeds it is ``Balanced``.

    Args:
        speeds: replica -> microbatches per second; a replica that is not in it counts as their median.

    Raises:
        ValueError: a speed is not a positive number.
    """

    by_speed = True

    def __init__(self, speeds: Mapping[int, float] = MappingProxyType({})) -> None:
        for replica, speed in speeds.items():
            if not (math.isfinite(speed) and speed > 0):
                raise ValueError(f"speed {speed!r} of replica {replica} must be positive microbatches per second")
        self.speeds: Mapping[int, float] = MappingProxyType(
            {replica: float(f"{speeds[replica]:.2e}") for replica in sorted(speeds)}
        )
        self._usual = statistics.median(self.speeds.values()) if speeds else 1.0

    def given(self, speeds: Mapping[int, float]) -> "Weighted":
        return Weighted(speeds)

    def plan(self, replicas: Sequence[int], microbatches: int) -> Assignment:
        ordered = in_order(replicas)
        speeds = self._speeds(ordered)
        total = math.fsum(speeds.values())
        # Nobody ends below its proportional share, rounded down; one less leaves room for rounding errors.
        quotas = {replica: max(0, int(microbatches * speed / total) - 1) for replica, speed in speeds.items()}
        rest = range(microbatches - sum(quotas.values()))
        for _, replica in zip(rest, soonest(dict(quotas), speeds), strict=False):
            quotas[replica] += 1
        return Assignment(in_blocks(ordered, quotas.values()), f"{microbatches} microbatches by {_told(speeds)}")

    def extend(self, progress: Mapping[int, Progress], microbatches: int) -> Assignment:
        ordered = in_order(progress)
        speeds = self._speeds(ordered)
        kept = {replica: held.done | held.owed for replica, held in progress.items()}
        missing = missing_from(kept, microbatches)
        given = given_out(missing, {replica: len(held.owed) for replica, held in progress.items()}, speeds)
        indices = {replica: tuple(sorted(kept[replica] | given[replica])) for replica in ordered}
        return Assignment(indices, f"{len(missing)} lost microbatches by {_told(speeds)}")

    def _speeds(self, replicas: Sequence[int]) -> dict[int, float]:
        return {replica: self.speeds.get(replica, self._usual) for replica in replicas}


def _told(speeds: Mapping[int, float]) -> str:
    slowest, fastest = min(speeds.values()), max(speeds.values())
    return f"the speeds of {len(speeds)} replicas, {slowest:g} to {fastest:g} per second"

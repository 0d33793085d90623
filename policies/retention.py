"""Which saved states stay: the newest, and those to which everybody may yet have to go back. Pure.

What is wrong in a state stays wrong in those that come of it. So a check that finds a state right vouches for the saved
ones before it as well, and of each step that counts the newest state that is not younger stays.
"""

from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise

from .world import Generation

# Of what one kind of check judges: the newest that is verified, the candidate, and one that is not judged yet.
PINNED = 3


@dataclass(frozen=True)
class Marks:
    """What counts beside the newest states.

    Attributes:
        steps: of each the newest saved state that is not younger stays.
        awaited: (interval, last): states are judged at multiples of the interval, and up to ``last`` they were; of
            those that were not, the oldest stays until it is.
    """

    steps: tuple[int, ...] = ()
    awaited: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Undone:
    """Everybody has gone back for want of trust: what was saved since is wrong, and nobody may ever go on from it.

    Attributes:
        step: to which they have gone back.
        generation: in which they have; what older ones have saved of later steps is what is wrong.
    """

    step: int
    generation: Generation

    def covers(self, step: int, generation: Generation) -> bool:
        """Whether the state of ``step`` that was saved in ``generation`` is among it, however late it comes."""
        return step > self.step and generation < self.generation


def staying(saved: Collection[int], keep: int, marks: Marks) -> frozenset[int]:
    """Those of the saved states, by the steps that they have taken, that must not be dropped.

    Args:
        saved: all that are whole.
        keep: how many of the newest stay in any case.
        marks: what counts beside them.
    """
    ordered = sorted(saved)
    stay = set(ordered[-keep:])
    for mark in marks.steps:
        stay |= set(ordered[: _up_to(ordered, mark)][-1:])
    for interval, last in marks.awaited:
        stay |= set(_judged_next(ordered, interval, last))
    return frozenset(stay)


def _up_to(ordered: list[int], mark: int) -> int:
    """How many are not younger."""
    return sum(step <= mark for step in ordered)


def _judged_next(ordered: list[int], interval: int, last: int) -> list[int]:
    """The oldest state for which a check that is still awaited will speak: the last one before a multiple."""
    for step, following in pairwise(ordered):
        boundary = -(-step // interval) * interval
        if step > last and following > boundary:
            return [step]
    return []

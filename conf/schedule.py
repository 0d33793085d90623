"""How many microbatches a step has: B, which may change at known steps. Pure functions of the step."""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any


@dataclass(frozen=True)
class BatchSchedule:
    """B of every step: from each of ``starts`` on, the number of ``counts`` at the same place.

    Make one with :meth:`of`. Equal schedules are equal as values, whichever way they were written.

    Attributes:
        starts: first step of each stretch, ascending, beginning with 0.
        counts: B of each stretch, at least 1.
    """

    starts: tuple[int, ...]
    counts: tuple[int, ...]

    @classmethod
    def of(cls, microbatches: "int | Mapping[int, int] | BatchSchedule") -> "BatchSchedule":
        """B for the whole run, or a schedule ``{step: B from this step on}``.

        Raises:
            ValueError: B is no whole number of at least 1, or a schedule says nothing about step 0 or has a step
                that is no whole number of at least 0.
        """
        if isinstance(microbatches, BatchSchedule):
            return microbatches
        table = microbatches if isinstance(microbatches, Mapping) else {0: microbatches}
        for step, count in table.items():
            if not _whole(step) or step < 0:
                raise ValueError(f"step {step!r} of the schedule must be a whole number of at least 0")
            if not _whole(count) or count < 1:
                raise ValueError(
                    f"{count!r} from step {step} on must be a whole number of at least 1"
                    if isinstance(microbatches, Mapping)
                    else f"{count!r} must be a whole number of at least 1, or a schedule {{step: B}}"
                )
        if 0 not in table:
            raise ValueError(f"the schedule {dict(table)} must say how many there are from step 0 on")
        starts: list[int] = []
        counts: list[int] = []
        for step in sorted(table):
            if not counts or counts[-1] != table[step]:
                starts.append(step)
                counts.append(table[step])
        return cls(tuple(starts), tuple(counts))

    def at(self, step: int) -> int:
        """B of this step."""
        return self.counts[bisect_right(self.starts, step) - 1]

    def before(self, step: int) -> int:
        """Microbatches of all steps earlier than this one."""
        stretch = bisect_right(self.starts, step) - 1
        return self._totals[stretch] + (step - self.starts[stretch]) * self.counts[stretch]

    @property
    def largest(self) -> int:
        """The largest B of any step."""
        return max(self.counts)

    @property
    def smallest(self) -> int:
        """The smallest B of any step."""
        return min(self.counts)

    def __str__(self) -> str:
        """For people: ``64``, or ``8, 16 from step 100 on``."""
        later = zip(self.starts[1:], self.counts[1:], strict=True)
        return ", ".join([str(self.counts[0]), *(f"{count} from step {step} on" for step, count in later)])

    @cached_property
    def _totals(self) -> tuple[int, ...]:
        """Microbatches before each stretch."""
        lengths = [stop - start for start, stop in zip(self.starts, self.starts[1:], strict=False)]
        return tuple(accumulate((n * count for n, count in zip(lengths, self.counts, strict=False)), initial=0))


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)

"""Where the records of steps go: to a file, to a callback."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from ...actors.messages import StepRecord


class Sink(Protocol):
    """Called on a thread of its own, so it may take its time.

    Attributes:
        name: for warnings.
        again: whether a write that failed is repeated with the same records. If not, records come one at a time.
    """

    name: str
    again: bool

    def write(self, records: Sequence[StepRecord]) -> None:
        """Take records, in the order of steps. Whatever it raises is told once, and the run goes on."""
        ...

    def close(self, failures: Mapping[int, Exception]) -> None:
        """After the last record; ``failures`` says by rank what ended a run that failed."""
        ...

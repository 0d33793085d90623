"""What ranks of a peer write about their steps, and what the measuring process reads."""

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class Mark:
    """One rank began or completed one optimizer step.

    Args:
        event: ``begin``, or ``done`` once the optimizer has stepped.
        step: optimizer step, 0-based.
        rank: who says it.
        pid: its process.
        world: names one membership; a step completed under another name was completed after a failure.
        microbatches: how many the step summed; 0 at ``begin``.
        time: on the machine's monotonic clock, which all processes share.
    """

    event: Literal["begin", "done"]
    step: int
    rank: int
    pid: int
    world: int
    microbatches: int
    time: float


class ProgressLog:
    """A file of marks, one JSON line each: all ranks append to it, the measuring process reads it."""

    def __init__(self, work: Path) -> None:
        self._path = work / "progress.jsonl"

    def write(
        self, event: Literal["begin", "done"], *, step: int, rank: int, world: int, microbatches: int = 0
    ) -> None:
        """Append one mark."""
        mark = Mark(event, step, rank, os.getpid(), world, microbatches, time.monotonic())
        # One write of one short line: lines of several processes never mix.
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, (json.dumps(asdict(mark)) + "\n").encode())
        finally:
            os.close(descriptor)

    def read(self) -> list[Mark]:
        """All marks so far, oldest first."""
        if not self._path.exists():
            return []
        marks = (Mark(**json.loads(line)) for line in self._path.read_text().splitlines())
        return sorted(marks, key=lambda mark: mark.time)

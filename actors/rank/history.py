"""Keeps the records of applied steps until the controller has them, so that the death of a rank loses none."""

import threading
from collections import deque

from ...policies.world import Generation
from ..messages import StepRecord


class History:
    """The newest records of this rank, without a gap; safe to use from several threads.

    Every rank keeps them, and the controller asks one: no message is sent for a step, and none is sent twice to
    a controller that is slow.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records: deque[StepRecord] = deque()
        self._next = 0
        self._course: Generation | None = None
        self._recorded = 0
        self._asked_from = 0
        self._wanted = False

    def begin(self, step: int, generation: Generation) -> None:
        """The next record will be that of ``step``; whatever there was of later ones is void, and comes once more.

        Args:
            generation: in which training begins there; an older one, or the same again, changes nothing.
        """
        with self._lock:
            if self._course is not None and generation <= self._course:
                return
            self._course = generation
            self._next = step
            self._recorded = min(self._recorded, step)
            while self._records and self._records[-1].step >= step:
                self._records.pop()

    def add(self, record: StepRecord, course: Generation | None = None) -> None:
        """Keep the record of the next step, unless the controller has it already.

        Args:
            course: the generation in which whoever took this step began; void if another beginning came since.
        """
        with self._lock:
            if course != self._course:
                return
            self._next = record.step + 1
            if record.step >= self._recorded:
                self._records.append(record)

    def acknowledge(self, recorded: int, wanted: bool, kept: int | None = None) -> None:
        """Drop what the controller has written down.

        Args:
            recorded: it has all steps before this one. A controller that has taken over may have fewer.
            wanted: whether it wants the rest from this rank.
            kept: all before this one are written down; None if all that it has are.
        """
        with self._lock:
            self._asked_from = recorded
            self._recorded = max(self._recorded, recorded if kept is None else kept)
            self._wanted = wanted
            while self._records and self._records[0].step < self._recorded:
                self._records.popleft()

    @property
    def held(self) -> int:
        """The oldest step whose record is kept, or will be when it is applied; all later ones are kept too."""
        with self._lock:
            return self._records[0].step if self._records else self._next

    def answer(self) -> tuple[StepRecord, ...]:
        """Everything kept that the controller has not got, once for each time that it asked."""
        with self._lock:
            wanted, self._wanted = self._wanted, False
            return tuple(record for record in self._records if record.step >= self._asked_from) if wanted else ()

    def rest(self) -> tuple[StepRecord, ...]:
        """Everything kept: last words, which nobody asks for."""
        with self._lock:
            return tuple(self._records)

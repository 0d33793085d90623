"""Hands records on to sinks. A sink that is slow or fails never holds the run up, and loses nothing without a word."""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import islice

from ...actors.messages import StepRecord
from ..cluster import describe
from .sink import Sink

NEWEST = 10_000
CAPACITY = 10_000
MOST_AT_ONCE = 1000
RETRY_S = 5.0
Warn = Callable[[str], None]


class Publisher:
    """All sinks of a run.

    Args:
        sinks: each gets a thread.
        warn: called with one line, from any thread.
        may: whether this process may still write; asked before each write.
    """

    def __init__(self, sinks: Sequence[Sink], warn: Warn, may: Callable[[], bool] = lambda: True) -> None:
        self._feeds = [Feed(sink, warn, may=may) for sink in sinks]
        self._newest: deque[StepRecord] = deque(maxlen=NEWEST)

    def publish(self, records: Sequence[StepRecord]) -> None:
        """Hand these on; never blocks."""
        while self._newest and records and self._newest[-1].step >= records[0].step:
            # These steps are taken once more.
            self._newest.pop()
        self._newest.extend(records)
        for feed in self._feeds:
            feed.put(records)

    def since(self, step: int) -> list[StepRecord]:
        """The newest records, from ``step`` on."""
        return [record for record in self._newest if record.step >= step]

    @property
    def kept(self) -> int | None:
        """All steps before this one were taken by every sink that does not fail; None if all that came were."""
        return min((step for feed in self._feeds if (step := feed.first_waiting) is not None), default=None)

    def flush(self, timeout: float) -> None:
        """Wait until every sink that does not fail has taken what came, for at most ``timeout`` seconds in all."""
        deadline = time.monotonic() + timeout
        for feed in self._feeds:
            feed.flush(max(0.0, deadline - time.monotonic()))

    def close(self, failures: Mapping[int, Exception], timeout: float) -> None:
        """Let every sink take what is left, for at most ``timeout`` seconds in all; blocks."""
        deadline = time.monotonic() + timeout
        for feed in self._feeds:
            feed.end(failures)
        for feed in self._feeds:
            feed.join(max(0.0, deadline - time.monotonic()))

    def abandon(self) -> None:
        """Write nothing more: another process does from now on; does not block."""
        for feed in self._feeds:
            feed.abandon()


class Feed:
    """The records that one sink has still to take, and the thread on which it does.

    Args:
        sink: where to.
        warn: called with one line.
        capacity: most records that wait; later ones are left out.
        retry: seconds until a failed write is repeated.
        may: whether this process may still write.
    """

    def __init__(
        self,
        sink: Sink,
        warn: Warn,
        capacity: int = CAPACITY,
        retry: float = RETRY_S,
        may: Callable[[], bool] = lambda: True,
    ) -> None:
        self._sink = sink
        self._warn = warn
        self._may = may
        self._abandoned = False
        self._capacity = capacity
        self._retry = retry
        self._changed = threading.Condition()
        self._waiting: deque[StepRecord] = deque()
        self._left_out = 0
        self._failures: Mapping[int, Exception] | None = None
        self._warned = False
        self._thread = threading.Thread(target=self._run, name=f"everstep-{sink.name}", daemon=True)
        self._thread.start()

    def put(self, records: Sequence[StepRecord]) -> None:
        """Queue records; never blocks."""
        with self._changed:
            room = self._capacity - len(self._waiting)
            self._waiting.extend(records[:room])
            left_out = records[room:]
            if left_out and not self._left_out:
                self._warn(
                    f"{self._sink.name} is {self._capacity} records behind: step {left_out[0].step} and what follows "
                    "are left out of it until it catches up"
                )
            self._left_out += len(left_out)
            self._changed.notify_all()

    @property
    def first_waiting(self) -> int | None:
        """The first step that the sink has not taken yet; None if there is none, or if it fails."""
        with self._changed:
            return self._waiting[0].step if self._waiting and not self._warned else None

    def flush(self, timeout: float) -> None:
        """Wait until the sink has taken everything, unless it fails."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting or self._warned, timeout)

    def end(self, failures: Mapping[int, Exception]) -> None:
        """Nothing more will come; does not block."""
        with self._changed:
            self._failures = failures
            self._changed.notify_all()

    def abandon(self) -> None:
        """Write nothing more; does not block."""
        with self._changed:
            self._abandoned = True
            self._waiting.clear()
            self._failures = {}
            self._changed.notify_all()

    def join(self, timeout: float) -> None:
        """Wait for the sink, and say what it did not take."""
        self._thread.join(timeout)
        with self._changed:
            missed = len(self._waiting) + self._left_out
        if self._thread.is_alive():
            self._warn(f"{self._sink.name} did not end in time; {missed} records were not taken")
        elif missed:
            self._warn(f"{self._sink.name} lacks {missed} records")

    def _run(self) -> None:
        while True:
            batch, last_try = self._next()
            if not batch:
                break
            if not self._may():
                return
            try:
                self._sink.write(batch)
            except BaseException as error:
                self._say(error)
                if self._sink.again:
                    if last_try:
                        break
                    self._pause()
                    continue
            with self._changed:
                if self._abandoned:
                    return
                for _ in batch:
                    self._waiting.popleft()
                self._changed.notify_all()
        if self._abandoned:
            return
        try:
            self._sink.close(self._failures or {})
        except BaseException as error:
            self._say(error)

    def _next(self) -> tuple[list[StepRecord], bool]:
        """What to write now, nothing at the end; and whether the run is over."""
        with self._changed:
            # The end of the run ends this wait.
            self._changed.wait_for(lambda: self._waiting or self._failures is not None)
            most = MOST_AT_ONCE if self._sink.again else 1
            batch: list[StepRecord] = []
            for record in islice(self._waiting, most):
                if batch and record.step <= batch[-1].step:
                    # What follows is taken once more.
                    break
                batch.append(record)
            return batch, self._failures is not None

    def _pause(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._failures is not None, self._retry)

    def _say(self, error: BaseException) -> None:
        """Once: the first failure explains the others."""
        if not self._warned:
            self._warned = True
            then = "it is tried again" if self._sink.again else "it is called again for the steps that follow"
            self._warn(f"{self._sink.name}: {describe(error)}; the run goes on, {then}")

"""A sink that is slow, stuck or broken never holds the run up, and nothing is lost without a word."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence

from everstep.actors.messages import StepRecord
from everstep.orchestrator.records.publisher import Feed, Publisher

from .machine_script import record_of

PATIENCE_S = 20.0


class Memory:
    """A sink that keeps what it takes; it can be made to wait or to fail."""

    name = "memory"

    def __init__(self, again: bool = True) -> None:
        self.again = again
        self.taken: list[int] = []
        self.failing: list[BaseException] = []
        self.tried, self.took = threading.Event(), threading.Event()
        self.open = threading.Event()
        self.open.set()
        self.failures: Mapping[int, Exception] | None = None

    def write(self, records: Sequence[StepRecord]) -> None:
        self.tried.set()
        assert self.open.wait(PATIENCE_S)
        if self.failing:
            raise self.failing.pop(0)
        self.taken += [record.step for record in records]
        self.took.set()

    def close(self, failures: Mapping[int, Exception]) -> None:
        self.failures = failures


def records(*steps: int) -> list[StepRecord]:
    return [record_of(step) for step in steps]


def test_every_sink_gets_everything_in_order_and_hears_how_the_run_ended() -> None:
    sinks, warnings = [Memory(), Memory(again=False)], []
    publisher = Publisher(sinks, warnings.append)
    publisher.publish(records(0, 1))
    publisher.publish(records(2))
    failures = {1: ValueError("bad")}
    publisher.close(failures, PATIENCE_S)
    assert [sink.taken for sink in sinks] == [[0, 1, 2]] * 2
    assert [sink.failures for sink in sinks] == [failures] * 2
    assert warnings == []
    assert [record.step for record in publisher.since(1)] == [1, 2]


def test_a_write_that_fails_is_told_once_and_repeated() -> None:
    sink, warnings = Memory(), []
    sink.failing = [OSError(28, "No space left on device"), OSError(28, "No space left on device")]
    feed = Feed(sink, warnings.append, retry=0.001)
    feed.put(records(0, 1))
    assert sink.took.wait(PATIENCE_S)
    feed.put(records(2))
    feed.end({})
    feed.join(PATIENCE_S)
    assert sink.taken == [0, 1, 2]
    assert warnings == ["memory: OSError: [Errno 28] No space left on device; the run goes on, it is tried again"]


def test_what_a_broken_sink_never_took_is_told_at_the_end() -> None:
    sink, warnings = Memory(), []
    sink.failing = [OSError("bad disk") for _ in range(1000)]
    feed = Feed(sink, warnings.append, retry=1000.0)
    feed.put(records(0, 1))
    assert sink.tried.wait(PATIENCE_S)
    feed.end({})
    feed.join(PATIENCE_S)
    assert warnings == ["memory: OSError: bad disk; the run goes on, it is tried again", "memory lacks 2 records"]


def test_a_callback_that_raises_is_called_for_every_step_once() -> None:
    sink, warnings = Memory(again=False), []
    sink.failing = [SystemExit("no"), ValueError("again")]
    feed = Feed(sink, warnings.append)
    feed.put(records(0, 1, 2, 3))
    feed.end({})
    feed.join(PATIENCE_S)
    assert sink.taken == [2, 3]
    assert warnings == ["memory: SystemExit: no; the run goes on, it is called again for the steps that follow"]


def test_a_slow_sink_blocks_nobody_and_what_it_cannot_keep_is_told() -> None:
    slow, quick, warnings = Memory(), Memory(), []
    slow.open.clear()
    slow_feed, quick_feed = Feed(slow, warnings.append, capacity=3), Feed(quick, warnings.append, capacity=3)
    started = time.monotonic()
    for feed in (slow_feed, quick_feed):
        feed.put(records(0, 1))
    assert slow.tried.wait(PATIENCE_S)
    slow_feed.put(records(2, 3, 4))
    slow_feed.put(records(5))
    quick_feed.end({})
    quick_feed.join(PATIENCE_S)
    assert quick.taken == [0, 1]
    assert time.monotonic() - started < PATIENCE_S
    behind = "memory is 3 records behind: step 3 and what follows are left out of it until it catches up"
    assert warnings == [behind]
    slow.open.set()
    slow_feed.end({})
    slow_feed.join(PATIENCE_S)
    assert slow.taken == [0, 1, 2]
    assert warnings == [behind, "memory lacks 3 records"]


def test_a_sink_that_is_stuck_does_not_keep_the_run_from_its_end() -> None:
    stuck, warnings = Memory(again=False), []
    stuck.open.clear()
    publisher = Publisher([stuck], warnings.append)
    publisher.publish(records(0, 1))
    assert stuck.tried.wait(PATIENCE_S)
    publisher.close({}, timeout=0.05)
    assert warnings == ["memory did not end in time; 2 records were not taken"]
    stuck.open.set()


def test_kept_is_what_every_sink_has_taken_unless_it_fails() -> None:
    quick, slow, broken = Memory(), Memory(), Memory()
    slow.open.clear()
    broken.failing = [OSError("disk")] * 100
    warnings: list[str] = []
    publisher = Publisher([quick, slow, broken], warnings.append)
    assert publisher.kept is None
    publisher.publish(records(3, 4))
    assert quick.took.wait(PATIENCE_S)
    until(lambda: bool(warnings))
    # The slow one has not got step 3; the broken one holds nobody up.
    assert publisher.kept == 3
    started = time.monotonic()
    publisher.flush(0.05)
    assert 0.04 < time.monotonic() - started < PATIENCE_S
    slow.open.set()
    publisher.flush(PATIENCE_S)
    assert slow.taken == [3, 4]
    assert publisher.kept is None
    publisher.abandon()


def test_who_may_not_write_any_more_writes_nothing() -> None:
    sink, warnings = Memory(), []
    allowed = [True]
    publisher = Publisher([sink], warnings.append, lambda: allowed[0])
    publisher.publish(records(0))
    assert sink.took.wait(PATIENCE_S)
    allowed[0] = False
    publisher.publish(records(1, 2))
    publisher.close({}, PATIENCE_S)
    assert sink.taken == [0]


def test_what_is_abandoned_is_neither_written_nor_closed() -> None:
    sink, warnings = Memory(), []
    sink.open.clear()
    publisher = Publisher([sink], warnings.append)
    publisher.publish(records(0))
    assert sink.tried.wait(PATIENCE_S)
    publisher.publish(records(1, 2))
    publisher.abandon()
    sink.open.set()
    assert sink.took.wait(PATIENCE_S)
    publisher.flush(PATIENCE_S)
    # What was under way could not be stopped; nothing follows it.
    assert sink.taken == [0]
    assert sink.failures is None


def until(condition: Callable[[], bool]) -> None:
    """Poll with a deadline: another thread makes it true."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)

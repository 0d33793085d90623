"""The ledger while the world or the controller changes, and under every workload policy."""

import threading
import time
from dataclasses import replace

import pytest
from everstep.actors.messages import Hold, Prepare
from everstep.actors.rank.ledger import RecoveryTimeout
from everstep.policies.workload import Versatile
from everstep.policies.world import Work, WorkKind

from .ledger_bench import START, Bench, generation

# --- holds, and controllers that take over


def test_a_hold_lengthens_the_wait_and_is_named_when_it_is_over() -> None:
    bench = Bench()
    started = time.monotonic()
    holder = threading.Timer(0.02, bench.ledger.hold, (Hold(0.15, "waiting for capacity"),))
    holder.start()
    with pytest.raises(RecoveryTimeout, match=r"for 0\.1\d* s at step 0, though the controller said: waiting for capa"):
        bench.ledger.await_open(0.05)
    assert 0.15 < time.monotonic() - started < 5
    holder.join()


def test_a_hold_shortens_nothing() -> None:
    bench = Bench()
    bench.ledger.hold(Hold(0.01, "waiting for capacity"))
    opener = threading.Timer(0.1, bench.open, (1,))
    opener.start()
    assert bench.ledger.await_open(10.0).generation == generation(1)
    opener.join()


def test_a_hold_is_over_with_the_next_generation() -> None:
    bench = Bench()
    bench.ledger.hold(Hold(1000.0, "waiting for capacity"))
    bench.open(1)
    bench.ledger.prepare(Prepare(generation(2)))
    with pytest.raises(RecoveryTimeout, match=r"at step 0$"):
        bench.ledger.await_open(0.01)


def test_whoever_only_looks_is_not_held() -> None:
    bench = Bench()
    bench.ledger.hold(Hold(1000.0, "waiting for capacity"))
    with pytest.raises(RecoveryTimeout):
        bench.ledger.await_open(0)


def test_a_controller_that_takes_over_is_told_where_a_rank_stands() -> None:
    bench = Bench()
    assert bench.ledger.serving() is None
    assert bench.ledger.again() is None
    bench.open(1)
    bench.ledger.fold(START, 0)
    serving = bench.ledger.serving()
    assert serving is not None
    assert (serving.world.generation, serving.abandoned, serving.position) == (generation(1), False, START)
    assert bench.ledger.again() is None, "it has promised nothing"
    bench.ledger.prepare(Prepare(generation(2)))
    bench.ledger.fold(START, 1)
    report = bench.ledger.again()
    assert report is not None
    assert (report.abandons, report.promised, report.done) == (generation(1), generation(2), {0, 1})
    assert report == replace(bench.reports[0], done=report.done, owed=frozenset())


# --- policies


def test_a_shadow_votes_though_it_owes_and_what_it_computed_for_nothing_is_void() -> None:
    """Two microbatches on three ranks: the third repeats the first."""
    two = Work(WorkKind.TRAINING, 2)
    major, shadow = Bench(workload=Versatile(), seat=0), Bench(workload=Versatile(), seat=2)
    for bench in (major, shadow):
        bench.open(1, (), work=two, known=False)
        assert bench.ledger.take_up(START, two, 1.0).indices == bench.ledger.planned(two) == (0,)
    assert (major.ledger.transaction.repeats, shadow.ledger.transaction.repeats) == (None, 0)
    assert not major.ledger.enter(START, generation(1))
    assert shadow.ledger.enter(START, generation(1))
    beginning = shadow.ledger.transaction.beginning
    shadow.ledger.prepare(Prepare(generation(2)))
    assert shadow.reports[0].repeats == 0
    shadow.open(2, (1,), work=two)
    assert not shadow.ledger.fold(START, 0, beginning)
    assert shadow.ledger.fold(START, 1, beginning + 1)
    assert shadow.ledger.transaction.done == {1}

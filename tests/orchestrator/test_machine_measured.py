"""What the machine measures of a run for the policies, and what it says of a failed one."""

import pytest
from everstep.actors.messages import Heartbeat
from everstep.orchestrator.machine.events import StopRequested
from everstep.orchestrator.machine.look import failures
from everstep.orchestrator.machine.measured import costs
from everstep.orchestrator.machine.speeds import speeds
from everstep.policies.costs import Costs
from everstep.policies.recovery import Swap
from everstep.policies.world import Position

from .machine_script import Script, name, record_of


def computed(script: Script, rank: int, microbatches: int, seconds: float, records: tuple[int, ...] = ()) -> None:
    kept = tuple(map(record_of, records))
    told = Heartbeat(name(rank), Position(0), "training", microbatches, busy=seconds, records=kept)
    script.hear(rank, told)


# --- measured


def test_nothing_measured_means_orders_of_magnitude() -> None:
    assert costs(Script().boot().state) == Costs(1.0)


def test_a_microbatch_costs_what_all_ranks_spent_on_theirs() -> None:
    script = Script(ranks=2).boot()
    computed(script, 0, 10, 2.0)
    computed(script, 1, 10, 4.0)
    assert costs(script.state).microbatch == pytest.approx(0.3)


def test_what_a_step_takes_beside_its_microbatches() -> None:
    """A step of 0.5 s in which each of four ranks computed two of the eight microbatches, at 0.1 s."""
    script = Script().boot()
    computed(script, 0, 10, 1.0, records=(0,))
    assert script.state.record == record_of(0)
    assert costs(script.state).step == pytest.approx(0.3)
    computed(script, 0, 10, 100.0)
    assert costs(script.state).step == 0.0


def test_past_recoveries_and_starts_say_what_the_next_ones_take() -> None:
    script = Script()
    script.start()
    script.greet(0, 1, 2, 3)
    script.now += 7.0
    script.ready(0, 1, 2, 3)
    script.end(3)
    script.now += 2.0
    for rank in (0, 1, 2):
        script.report(rank)
    script.now += 1.0
    script.join(0, 1, 2)
    script.resume(0, 1, 2)
    measured = costs(script.state)
    assert (measured.detect, measured.rebuild, measured.restart) == (2.0, 1.0, 7.0)


def test_a_replica_is_as_fast_as_its_slowest_rank_and_unknown_before_all_have_said_so() -> None:
    script = Script(ranks=4, size=2).boot()
    assert script.state.world is not None
    computed(script, 0, 10, 1.0)
    computed(script, 2, 10, 1.0)
    computed(script, 3, 10, 5.0)
    assert speeds(script.state.ranks, script.state.world) == {1: 2.0}


# --- failures


def test_a_run_that_has_not_failed_has_no_failures() -> None:
    script = Script(ranks=2).boot()
    script.end(1)
    assert failures(script.state) == {}


def test_failures_go_by_the_numbers_of_ranks_with_the_exception_or_the_cause() -> None:
    script = Script(ranks=4, size=2).boot()
    script.end(1, cause="out of memory")
    script.fail_in(3, final=True)
    found = failures(script.state)
    assert set(found) == {1, 3}
    assert "out of memory" in str(found[1])
    assert "ValueError: bad (train.py:1)" in str(found[3])


def test_of_two_ranks_that_had_the_same_seat_the_last_one_is_named() -> None:
    script = Script(ranks=2, spares=1, recovery=Swap()).boot()
    script.end(1, cause="the first")
    script.report(0)
    script.end(2, cause="the second")
    script.fail_in(0, final=True)
    assert "the second" in str(failures(script.state)[1])


def test_a_run_that_no_rank_has_failed_has_its_own_error() -> None:
    script = Script(ranks=2).boot()
    script.happen(StopRequested("the driver is gone"))
    found = failures(script.state)
    assert {number: str(error) for number, error in found.items()} == {-1: "stopped: the driver is gone"}

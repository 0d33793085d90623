"""From the first rank's start to the first generation."""

import pytest
from everstep.actors.messages import Fenced, Open, Ping, StoreAddress
from everstep.conf.elastic import Timeouts
from everstep.orchestrator.machine.events import Started, StartRank, StopRequested, StoreOpened
from everstep.orchestrator.machine.state import Standing
from everstep.orchestrator.view import Phase
from everstep.policies.world import Position, Seat

from .machine_script import Script, addressees, asked_for, killed, sent


def test_every_rank_is_asked_for_in_the_order_of_seats() -> None:
    script = Script(ranks=3).start()
    assert asked_for(script.history) == [0, 1, 2]
    assert [action.seat for action in script.history if isinstance(action, StartRank)] == [Seat(0), Seat(1), Seat(2)]
    assert script.look.phase is Phase.STARTING
    assert script.look.reason == "waiting for ranks 0.0, 1.0, 2.0 to reach begin"


def test_the_first_generation_opens_when_the_last_rank_is_ready() -> None:
    script = Script(ranks=3).start()
    script.greet(0, 1, 2)
    script.ready(2, 0)
    assert addressees(script.history, Open) == []
    assert script.look.reason == "waiting for ranks 1.0 to reach begin"
    script.ready(1)
    (opened,) = sent(script.answered, 1, Open)
    assert addressees(script.answered, Open) == [0, 1, 2]
    assert opened.position == Position(0)
    assert opened.world.incarnations == ("rank-0", "rank-1", "rank-2")
    assert (opened.work, opened.indices, opened.poison) == (None, {}, {}), "every rank plans for itself"
    assert opened.store == StoreAddress("host", 1234, "root/1.1")
    assert script.state.phase is Phase.RUNNING
    assert [script.standing(rank) for rank in range(3)] == [Standing.MEMBER] * 3


def test_nothing_opens_before_the_store_listens() -> None:
    script = Script(ranks=2)
    script.happen(Started())
    script.greet(0, 1)
    script.ready(0, 1)
    assert script.state.world is None
    script.happen(StoreOpened("host", 1))
    assert addressees(script.answered, Open) == [0, 1]


def test_enough_ranks_start_without_the_late_ones_when_the_patience_ends() -> None:
    script = Script(ranks=4, minimum=2, timeouts=Timeouts(start=30)).start()
    script.greet(0, 1, 3)
    script.ready(0, 3)
    script.wait(29.0, 0, 1, 3)
    assert script.state.phase is Phase.STARTING
    actions = script.wait(1.5, 0, 1, 3)
    assert addressees(actions, Open) == [0, 3]
    assert script.state.world is not None
    assert script.state.world.replicas == (0, 3)
    assert killed(actions) == [1, 2]
    # Whoever comes late is told so, and changes nothing.
    actions = script.ready(1)
    assert addressees(actions, Fenced) == [1]
    assert script.state.world.replicas == (0, 3)
    assert script.state.phase is Phase.RUNNING


def test_too_few_ranks_in_time_is_one_line() -> None:
    script = Script(ranks=4, minimum=3, timeouts=Timeouts(start=30)).start()
    script.greet(0, 1)
    script.ready(0, 1)
    script.wait(31.0, 0, 1)
    assert script.error == ("2 of 3 ranks reached begin within 30 s; missing: 2.0, 3.0 (are there enough resources?)")


def test_a_death_before_the_first_generation_lets_the_others_begin() -> None:
    script = Script(ranks=3, minimum=2).start()
    script.greet(0, 1, 2)
    script.ready(0, 1)
    actions = script.end(2)
    assert addressees(actions, Open) == [0, 1]
    assert script.state.first_cause == "rank 2.0: its process ended with signal 9"


def test_a_death_below_the_minimum_before_the_first_generation_ends_the_run_at_once() -> None:
    script = Script(ranks=3, minimum=3).start()
    script.greet(0, 1)
    script.end(2, cause="no node has room for it")
    assert script.error == (
        "2 ranks are left before the first step, 3 are needed; first cause: rank 2.0: no node has room for it"
    )


@pytest.mark.parametrize(
    ("odd", "key"),
    [
        ({"weight": "other"}, "initial state of weight"),
        ({"steps": "6"}, "steps"),
        ({"length": "99"}, "length"),
    ],
)
def test_members_that_differ_may_not_train_together(odd: dict[str, str], key: str) -> None:
    script = Script(ranks=3).start()
    script.greet(0, 1, 2)
    script.ready(0, 1, **({"length": "10"} if "length" in odd else {}))
    script.ready(2, **odd)
    assert f"members differ in {key} (" in script.error
    assert "rank 2.0: " + next(iter(odd.values())) in script.error
    assert addressees(script.history, Open) == []


def test_environments_that_differ_may_not_train_together() -> None:
    script = Script(ranks=2).start()
    script.greet(0, torch="2.13")
    script.greet(1, torch="2.14")
    script.ready(0, 1)
    assert "members differ in environment torch (rank 0.0: 2.13, rank 1.0: 2.14)" in script.error


def test_a_rank_that_is_left_out_may_differ() -> None:
    script = Script(ranks=3, minimum=2, timeouts=Timeouts(start=30)).start()
    script.greet(0, 1, 2)
    script.end(2)
    script.ready(0, 1)
    assert script.state.phase is Phase.RUNNING


def test_a_silent_rank_is_given_up_before_the_first_generation_too() -> None:
    script = Script(ranks=3, minimum=2).start()
    script.greet(0, 1, 2)
    script.ready(0, 1)
    # While a process loads its libraries it may keep all of its threads waiting.
    assert killed(script.wait(30.0, 0, 1)) == []
    actions = script.wait(3.5, 0, 1)
    assert killed(actions) == [2]
    assert script.look.first_cause is not None
    assert script.look.first_cause.startswith("rank 2.0: no sign of life for 3")
    # It never met the others, so they need not wait for the proof of its end.
    assert addressees(actions, Open) == [0, 1]
    script.end(2)
    assert script.state.phase is Phase.RUNNING


def test_a_rank_whose_process_is_not_up_yet_is_no_suspect() -> None:
    script = Script(ranks=2).start()
    script.greet(0)
    actions = script.wait(60.0, 0)
    assert killed(actions) == []
    assert addressees(actions, Ping) == [0] * 120


def test_a_stop_from_outside_ends_the_run() -> None:
    script = Script(ranks=2).boot()
    script.happen(StopRequested("somebody asked"))
    assert script.error == "stopped: somebody asked"
    assert killed(script.answered) == [0, 1]

"""From a loss to the next generation, and again when more is lost on the way."""

from everstep.actors.messages import Fenced, Open, Prepare
from everstep.orchestrator.machine.state import Standing
from everstep.orchestrator.view import Phase
from everstep.policies.world import Position, Seat

from .machine_script import Script, addressees, generation, killed, name, prepared, sent

# Four ranks and eight microbatches: the first plan is 0: 0 1, 1: 2 3, 2: 4 5, 3: 6 7.


def test_a_death_is_answered_with_prepare_reports_and_open() -> None:
    script = Script().boot()
    script.now += 1
    actions = script.end(1)
    assert prepared(actions) == [(0, 2), (2, 2), (3, 2)]
    assert killed(actions) == [1], "a broken connection is no proof of an end"
    assert script.look.phase is Phase.RECOVERING
    assert script.look.first_cause == "rank 1.0: its process ended with signal 9"
    assert script.look.reason.endswith("waiting for reports of ranks 0.0, 2.0, 3.0")
    script.report(0, done=(0, 1))
    script.report(2, done=(4,))
    assert addressees(script.answered, Open) == []
    script.report(3, done=(6, 7))
    assert addressees(script.answered, Open) == [0, 2, 3]
    (opened,) = sent(script.answered, 0, Open)
    assert opened.world.generation == generation(2)
    assert opened.world.replicas == (0, 2, 3)
    assert opened.position == Position(0)
    assert opened.store.prefix == "root/1.2"
    # Each keeps what it has and owes; 2 and 3 were lost, and rank 2 still computes 5.
    assert opened.indices == {"rank-0": (0, 1, 2), "rank-2": (4, 5), "rank-3": (3, 6, 7)}


def test_the_record_of_a_recovery() -> None:
    script = Script().boot()
    script.end(1)
    for rank in (0, 2, 3):
        script.report(rank)
    script.join(0, 2, 3)
    assert script.look.phase is Phase.RECOVERING
    script.resume(0, 2)
    assert script.look.phase is Phase.RECOVERING
    script.now += 2.0
    script.resume(3)
    assert script.look.phase is Phase.RUNNING
    (record,) = script.look.recoveries
    assert (record.generation, record.step) == ("1.2", 0)
    assert (record.world_before, record.world_after) == (4, 3)
    assert (record.lost, record.lost_microbatches) == (("1.0",), (2, 3))
    assert record.phases["total"] == 2.0
    assert abs(sum(record.phases.values()) - 2 * record.phases["total"]) < 1e-9
    assert record.cause == "rank 1.0: its process ended with signal 9"


def test_the_first_cause_is_kept() -> None:
    script = Script().boot()
    script.end(1, cause="the first")
    script.recover(0, 2, 3)
    script.end(2, cause="the second")
    script.recover(0, 3)
    assert script.look.first_cause == "rank 1.0: the first"
    assert [record.cause for record in script.look.recoveries] == ["rank 1.0: the first", "rank 2.0: the second"]


def test_a_failed_collective_that_comes_before_the_death_is_explained_by_it() -> None:
    script = Script().boot()
    script.report(0, cause="Connection closed by peer", accused=1)
    assert script.look.first_cause == "rank 0.0: Connection closed by peer"
    script.end(1)
    assert script.look.first_cause == "rank 1.0: its process ended with signal 9"
    script.report(2)
    script.report(3)
    script.join(0, 2, 3)
    script.resume(0, 2, 3)
    assert script.look.recoveries[0].cause == "rank 1.0: its process ended with signal 9"


def test_a_second_death_before_the_generation_is_open_joins_the_recovery() -> None:
    script = Script().boot()
    script.end(1)
    script.report(0, done=(0, 1))
    actions = script.end(2)
    assert prepared(actions) == [], "those who live were already asked"
    script.report(3)
    assert addressees(script.answered, Open) == [0, 3]
    (opened,) = sent(script.answered, 3, Open)
    assert opened.world.generation == generation(2)
    assert opened.indices == {"rank-0": (0, 1, 2, 3, 4), "rank-3": (5, 6, 7)}
    assert script.state.recovery is not None
    assert script.state.recovery.lost == (Seat(1), Seat(2))


def test_the_death_of_the_last_one_to_report_opens_the_generation() -> None:
    script = Script().boot()
    script.end(1)
    script.report(0)
    script.report(2)
    script.end(3)
    assert addressees(script.answered, Open) == [0, 2]


def test_a_death_after_a_rank_has_reported_takes_its_microbatches_too() -> None:
    script = Script().boot()
    script.end(1)
    script.report(0)
    script.report(2, done=(4, 5))
    script.end(2)
    script.report(3)
    (opened,) = sent(script.answered, 3, Open)
    assert opened.world.replicas == (0, 3)
    assert sorted(index for indices in opened.indices.values() for index in indices) == list(range(8))


def test_a_second_death_after_the_open_prepares_again_under_the_next_number() -> None:
    script = Script().boot()
    script.end(1)
    for rank in (0, 2, 3):
        script.report(rank)
    given = {rank: script.indices(rank) for rank in (0, 3)}
    actions = script.end(2)
    assert prepared(actions) == [(0, 3), (3, 3)]
    script.report(0)
    script.report(3, done=(6, 7))
    (opened,) = sent(script.answered, 0, Open)
    assert opened.world.generation == generation(3)
    assert set(given[0]) <= set(opened.indices["rank-0"])
    assert set(given[3]) <= set(opened.indices["rank-3"])
    script.join(0, 3)
    script.resume(0, 3)
    (record,) = script.look.recoveries
    assert record.lost == ("1.0", "2.0"), "one recovery, whatever happened on its way"
    assert (record.world_before, record.world_after) == (4, 2)
    assert record.lost_microbatches == (2, 3, 4, 5)


def test_two_deaths_at_once() -> None:
    script = Script().boot()
    script.end(1, 2)
    script.report(0)
    script.report(3)
    assert addressees(script.answered, Open) == [0, 3]
    assert script.indices(0) == (0, 1, 2, 4)
    assert script.indices(3) == (3, 5, 6, 7)


def test_down_to_a_single_rank() -> None:
    script = Script(ranks=3, microbatches=4).boot()
    script.end(0, 2)
    script.report(1)
    assert script.indices(1) == (0, 1, 2, 3)


def test_all_dead_is_one_line_with_the_first_cause() -> None:
    script = Script(ranks=2).boot()
    script.end(1, cause="the node is lost")
    script.end(0)
    assert script.error == "all 2 replicas are lost; first cause: rank 1.0: the node is lost"


def test_below_the_minimum_the_run_ends() -> None:
    script = Script(ranks=3, minimum=2).boot()
    script.end(1)
    script.recover(0, 2)
    script.end(2)
    assert script.state.phase is Phase.RECOVERING, "the survivor is asked, whatever comes of it"
    script.report(0)
    assert script.error == (
        "1 of 2 replicas are left, the minimum is 2; first cause: rank 1.0: its process ended with signal 9"
    )
    assert killed(script.answered) == [0]


# --- positions


def test_if_anybody_has_committed_the_others_follow() -> None:
    script = Script().boot()
    script.end(1)
    # Rank 0 saw the vote whole and has begun the next step, whose plan was 0 1 of eight.
    script.report(0, Position(1), done=(0,), owed=(1,))
    script.report(2, Position(0), done=(4, 5))
    script.report(3, Position(0), done=(6, 7))
    (opened,) = sent(script.answered, 2, Open)
    assert opened.position == Position(1)
    # The followers hold nothing of that step; what is left of it is shared so that all have as much to do.
    assert opened.indices == {"rank-0": (0, 1, 4, 7), "rank-2": (2, 5), "rank-3": (3, 6)}
    assert script.state.recovery is not None
    assert script.state.recovery.step == 0
    assert script.state.recovery.lost_microbatches == (2, 3), "what the others would have begun is not lost"
    script.join(0, 2, 3)
    script.resume(2)
    assert script.look.phase is Phase.RECOVERING
    script.resume(3)
    assert script.look.phase is Phase.RUNNING, "who was ahead has nothing to follow"


def test_what_the_only_one_who_committed_said_dies_with_it() -> None:
    script = Script().boot()
    script.end(1)
    script.report(0, Position(1), done=(), owed=(0, 1))
    script.report(2, done=(4, 5))
    script.end(0)
    script.report(3, done=(6, 7))
    (opened,) = sent(script.answered, 2, Open)
    assert opened.position == Position(0), "nobody is left who has seen the vote whole"


def test_a_void_attempt_is_a_position_of_its_own() -> None:
    script = Script().boot()
    script.end(1)
    script.report(0, Position(2, attempt=1), done=(), owed=(0, 1))
    script.report(2, Position(2), done=(4, 5))
    script.report(3, Position(2, attempt=1), done=(6,), owed=(7,))
    (opened,) = sent(script.answered, 2, Open)
    assert opened.position == Position(2, attempt=1)
    assert {6, 7} <= set(opened.indices["rank-3"])


# --- reports


def test_a_report_of_an_older_generation_is_refused() -> None:
    script = Script().boot()
    script.end(1)
    script.recover(0, 2, 3)
    before = script.state
    script.report(0, abandons=1)
    assert len(script.records("stale report refused")) == 1
    assert script.state == before
    assert addressees(script.answered, Prepare) == []


def test_a_later_report_of_the_same_rank_replaces_the_earlier() -> None:
    script = Script().boot()
    script.report(0, done=(), cause="Connection closed by peer")
    script.end(1)
    script.report(0, done=(0,))
    script.report(2)
    script.report(3)
    assert script.state.recovery is not None
    report = script.state.ranks[name(0)].report
    assert report is not None
    assert report.done == {0}
    assert script.indices(0)[:2] == (0, 1)


def test_a_report_of_somebody_who_left_is_refused() -> None:
    script = Script().boot()
    script.wait(8.5, 0, 2, 3)
    assert script.standing(1) is Standing.FENCED
    assert script.state.world is not None
    actions = script.report(1)
    assert addressees(actions, Fenced) == [1]
    assert script.state.ranks[name(1)].report is None


def test_whoever_does_not_report_in_time_is_given_up() -> None:
    script = Script().boot()
    script.end(1)
    script.report(0)
    script.report(2)
    # Its control thread beats, but no report comes.
    actions = script.wait(5.5, 0, 2, 3)
    assert killed(actions) == [3]
    assert script.state.ranks[name(3)].cause == "no report within 5 s of a recovery"
    actions = script.end(3)
    assert addressees(actions, Open) == [0, 2]


# --- errors without a death


def test_an_error_without_a_death_forms_the_same_group_again() -> None:
    script = Script(ranks=3).boot()
    script.report(0, cause="time-out")
    for rank in (1, 2):
        script.report(rank)
    (opened,) = sent(script.answered, 0, Open)
    assert opened.world.replicas == (0, 1, 2)
    assert opened.world.generation == generation(2)
    assert opened.indices == {"rank-0": (0, 1, 2), "rank-1": (3, 4, 5), "rank-2": (6, 7)}
    script.join(0, 1, 2)
    script.resume(0, 1, 2)
    assert script.look.recoveries[0].lost == ()
    assert script.state.deathless == 0


def fail_without_a_death(script: Script, *, accused: int | None) -> None:
    script.report(0, cause="time-out", accused=accused)
    script.report(1)
    script.report(2, cause="time-out", accused=accused)


def test_the_third_time_in_a_row_the_accused_is_shut_out() -> None:
    script = Script(ranks=3).boot()
    fail_without_a_death(script, accused=1)
    fail_without_a_death(script, accused=1)
    assert script.generation == generation(3)
    assert killed(script.history) == []
    fail_without_a_death(script, accused=1)
    assert killed(script.history) == [1]
    assert addressees(script.history, Fenced) == [1]
    assert script.look.reason.endswith("waiting for the end of fenced ranks 1.0")
    script.end(1)
    (opened,) = sent(script.answered, 0, Open)
    assert opened.world.replicas == (0, 2)
    assert opened.world.generation == generation(4)
    assert script.state.deathless == 0


def test_three_times_in_a_row_only_counts_without_a_step_between() -> None:
    script = Script(ranks=3).boot()
    for _ in range(4):
        fail_without_a_death(script, accused=1)
        script.join(0, 1, 2)
        script.resume(0, 1, 2)
    assert killed(script.history) == []
    assert len(script.look.recoveries) == 4


def test_three_times_in_a_row_with_nobody_to_blame_ends_the_run() -> None:
    script = Script(ranks=3).boot()
    for _ in range(3):
        fail_without_a_death(script, accused=None)
    assert script.error.startswith("collectives failed 3 times in a row and nobody can be blamed")


def test_an_accusation_that_is_heard_twice_counts_once() -> None:
    script = Script(ranks=3).boot()
    for _ in range(2):
        script.report(0, cause="time-out", accused=2)
    script.report(1, cause="time-out", accused=2)
    assert script.state.accusations == {name(2): 2}


def test_the_dead_are_not_blamed_for_what_comes_after() -> None:
    script = Script(ranks=4).boot()
    script.report(0, cause="closed", accused=3)
    script.end(3)
    script.report(1)
    script.report(2)
    for _ in range(2):
        fail_without_a_death(script, accused=None)
    fail_without_a_death(script, accused=None)
    assert "nobody can be blamed" in script.error

"""Silence, exceptions, last words and the end: what one rank's behaviour means for the run."""

from everstep.actors.messages import FaultFired, Fenced, Heartbeat, Open, Ping, Release
from everstep.orchestrator.machine.events import EndRun
from everstep.orchestrator.machine.state import Standing
from everstep.orchestrator.view import Phase
from everstep.policies.world import Position

from .machine_script import Script, addressees, generation, killed, name, prepared

# --- suspicion


def test_silence_is_suspected_then_fenced_then_killed_then_confirmed() -> None:
    script = Script().boot()
    script.wait(5.0, 0, 2, 3)
    assert script.standing(1) is Standing.MEMBER
    actions = script.wait(0.5, 0, 2, 3)
    assert script.standing(1) is Standing.SUSPECT
    assert killed(actions) == []
    actions = script.wait(2.0, 0, 2, 3)
    assert 1 in addressees(actions, Ping), "a suspect is asked before it is given up"
    assert script.standing(1) is Standing.SUSPECT
    actions = script.wait(0.5, 0, 2, 3)
    assert script.standing(1) is Standing.FENCED
    assert addressees(actions, Fenced) == [1]
    assert killed(actions) == [1]
    assert prepared(actions) == [(0, 2), (2, 2), (3, 2)]
    for rank in (0, 2, 3):
        script.report(rank)
    assert addressees(script.answered, Open) == [], "its end is not confirmed"
    assert script.look.reason.endswith("waiting for the end of fenced ranks 1.0")
    actions = script.end(1)
    assert addressees(actions, Open) == [0, 2, 3]
    assert script.look.first_cause is not None
    assert "no sign of life for 8.0 s, nor an answer to a probe" in script.look.first_cause


def test_the_time_of_the_recovery_counts_from_the_suspicion() -> None:
    script = Script().boot()
    script.wait(5.5, 0, 2, 3)
    suspected = script.now
    script.wait(2.5, 0, 2, 3)
    assert script.state.recovery is not None
    assert script.state.recovery.started == suspected


def test_a_suspect_that_answers_is_cleared() -> None:
    script = Script().boot()
    script.wait(6.0, 0, 2, 3)
    assert script.standing(1) is Standing.SUSPECT
    script.beat(1)
    assert script.standing(1) is Standing.MEMBER
    actions = script.wait(20.0, 0, 1, 2, 3)
    assert killed(actions) == []
    assert script.state.recovery is None


def test_the_end_of_a_killed_rank_is_awaited_no_longer_than_the_patience() -> None:
    script = Script().boot()
    script.wait(8.0, 0, 2, 3)
    for rank in (0, 2, 3):
        script.report(rank)
    actions = script.wait(1.5, 0, 2, 3)
    assert addressees(actions, Open) == []
    actions = script.wait(0.5, 0, 2, 3)
    assert addressees(actions, Open) == [0, 2, 3]


def test_a_fenced_rank_that_wakes_is_told_so_and_changes_nothing() -> None:
    script = Script().boot()
    script.wait(8.0, 0, 2, 3)
    before = script.state
    for say in (
        lambda: script.beat(1, 3),
        lambda: script.report(1, Position(9)),
        lambda: script.join(1),
        lambda: script.resume(1),
        lambda: script.finish(1),
        lambda: script.fail_in(1),
    ):
        say()
        assert addressees(script.answered, Fenced) == [1]
        assert script.state == before


def test_a_connection_that_nobody_asked_for_is_fenced() -> None:
    script = Script(ranks=2).boot()
    before = script.state
    actions = script.beat(7)
    assert addressees(actions, Fenced) == [7]
    assert script.state == before


def test_several_silent_ranks_are_one_recovery() -> None:
    script = Script().boot()
    actions = script.wait(8.0, 0, 3)
    assert sorted(killed(actions)) == [1, 2]
    assert {number for _, number in prepared(actions)} == {2}
    script.end(1, 2)
    script.report(0)
    script.report(3)
    assert script.generation == generation(2)
    assert script.state.world is not None
    assert script.state.world.replicas == (0, 3)


# --- the controller's own sleep


def test_a_controller_that_slept_accuses_nobody() -> None:
    script = Script().boot()
    script.wait(1.0, 0, 1, 2, 3)
    actions = script.tick(60.0, asleep=59.5)
    assert killed(actions) == []
    assert script.state.recovery is None
    assert {script.standing(rank) for rank in range(4)} == {Standing.MEMBER}


def test_a_rank_that_falls_silent_after_the_controllers_sleep_is_found_as_soon_as_ever() -> None:
    script = Script().boot()
    script.now += 60.0
    for rank in range(4):
        script.beat(rank)
    script.tick(0.0, asleep=59.5)
    actions = script.wait(8.0, 0, 2, 3)
    assert killed(actions) == [1]


def test_a_suspects_time_to_answer_does_not_run_while_the_controller_sleeps() -> None:
    script = Script().boot()
    script.wait(6.0, 0, 2, 3)
    assert script.standing(1) is Standing.SUSPECT
    actions = script.tick(60.0, asleep=59.5)
    assert killed(actions) == []
    script.beat(1)
    assert script.standing(1) is Standing.MEMBER


def test_the_time_to_report_does_not_run_while_the_controller_sleeps() -> None:
    script = Script().boot()
    script.end(1)
    actions = script.tick(60.0, asleep=59.5)
    assert killed(actions) == []
    for rank in (0, 2, 3):
        script.report(rank)
    assert addressees(script.answered, Open) == [0, 2, 3]


# --- exceptions


def test_one_ranks_exception_is_first_taken_for_its_own_fault() -> None:
    script = Script().boot()
    script.fail_in(1, microbatch=3)
    assert script.state.phase is Phase.RUNNING
    actions = script.end(1)
    assert [rank for rank, _ in prepared(actions)] == [0, 2, 3]
    script.recover(0, 2, 3)
    assert script.look.phase is Phase.RUNNING
    assert script.look.first_cause == "rank 1.0: ValueError: bad (train.py:1)"


def test_the_same_microbatch_on_two_ranks_is_poison_and_its_samples_are_named() -> None:
    script = Script().boot()
    script.fail_in(1, microbatch=3)
    script.end(1)
    script.recover(0, 2, 3)
    script.fail_in(0, microbatch=3, at="elsewhere.py:9")
    assert script.error == (
        "microbatch 3 of step 0 is poison, it failed on two ranks (samples 43, 53): ValueError: bad (train.py:1)"
    )
    assert script.look.traceback == "trace"
    assert sorted(killed(script.answered)) == [0, 2, 3]


def test_the_same_index_of_another_step_is_another_microbatch() -> None:
    script = Script().boot()
    script.fail_in(1, microbatch=3, position=Position(0))
    script.end(1)
    script.recover(0, 2, 3)
    script.fail_in(0, microbatch=3, position=Position(1), at="elsewhere.py:9")
    assert script.state.phase is Phase.RUNNING


def test_ranks_that_raise_alike_end_the_run_at_once() -> None:
    script = Script().boot()
    script.fail_in(1, microbatch=None)
    script.fail_in(2, microbatch=None)
    assert script.error == "the training function fails alike on several ranks: ValueError: bad (train.py:1)"


def test_what_would_fail_everywhere_ends_the_run_at_once() -> None:
    script = Script().boot()
    script.fail_in(1, final=True)
    assert script.error == "rank 1.0: ValueError: bad (train.py:1)"


def test_an_exception_that_is_heard_twice_is_still_one_ranks() -> None:
    script = Script().boot()
    script.fail_in(1, microbatch=3)
    script.fail_in(1, microbatch=3)
    assert script.state.phase is Phase.RUNNING


def test_an_exception_before_the_first_generation() -> None:
    script = Script(ranks=3, minimum=2).start()
    script.greet(0, 1, 2)
    script.fail_in(0, microbatch=None)
    script.end(0)
    script.ready(1, 2)
    assert script.state.phase is Phase.RUNNING
    assert script.state.world is not None
    assert script.state.world.replicas == (1, 2)


# --- last words


def test_the_last_words_of_a_rank_that_is_gone_are_heard() -> None:
    script = Script().boot()
    script.end(1)
    script.hear(1, FaultFired(name(1), "sigkill of rank 1.0", "pid 7"))
    assert script.look.faults_fired == ("sigkill of rank 1.0: pid 7",)
    script.fail_in(1, microbatch=3)
    script.recover(0, 2, 3)
    script.fail_in(2, microbatch=3, at="elsewhere.py:9")
    assert "is poison" in script.error


def test_anything_else_of_a_rank_that_is_gone_is_refused() -> None:
    script = Script().boot()
    script.end(1)
    before = script.state
    script.report(1, Position(3))
    script.finish(1)
    script.beat(1, 4)
    assert script.state == before


def test_a_fault_that_is_heard_of_twice_fired_once() -> None:
    script = Script().boot()
    for _ in range(2):
        script.hear(1, FaultFired(name(1), "sigkill of rank 1.0", "pid 7"))
    assert len(script.look.faults_fired) == 1


# --- the end


def test_all_finished_alike_is_a_success() -> None:
    script = Script(ranks=3).boot()
    script.finish(0, 2)
    assert script.look.phase is Phase.RUNNING
    assert script.look.reason == "waiting for the training function to return on every rank"
    script.finish(1)
    assert script.look.phase is Phase.SUCCEEDED
    assert addressees(script.answered, Release) == [0, 1, 2]
    assert script.answered[-1] == EndRun()
    metrics = script.look.metrics
    assert (metrics["weights_sha256"], metrics["state_sha256"]) == ("weights", "state")
    assert metrics["microbatches_computed"] == 30
    assert metrics["world"] == 3
    assert metrics["x"] == 2.0
    assert script.look.step == script.look.steps == 5


def test_different_weights_are_a_failure_that_names_the_minority() -> None:
    script = Script(ranks=3).boot()
    script.finish(0, 2)
    script.finish(1, weights="other")
    assert script.error.startswith("ranks ended with different weights (differing: 1.0)")


def test_the_same_weights_with_another_state_are_a_failure_too() -> None:
    """An optimizer that differs would make the next steps differ."""
    script = Script(ranks=3).boot()
    script.finish(0, 2)
    script.finish(1, state="other")
    assert script.error == (
        "ranks ended with different state (differing: 1.0): {'0.0': 'state', '1.0': 'other', '2.0': 'state'}"
    )


def test_two_ranks_that_end_differently_blame_nobody() -> None:
    script = Script(ranks=2).boot()
    script.finish(0)
    script.finish(1, weights="other")
    assert "differing: nobody can be named" in script.error


def test_who_has_finished_need_not_speak_again() -> None:
    script = Script(ranks=3).boot()
    script.finish(0)
    script.wait(6.0, 1, 2)
    assert script.standing(0) is Standing.SUSPECT
    script.finish(1, 2)
    assert script.look.phase is Phase.SUCCEEDED


def test_a_recovery_does_not_wait_for_a_silent_rank_that_has_finished() -> None:
    script = Script(ranks=3).boot()
    script.finish(0)
    script.end(2)
    script.report(0, Position(5), begun=False)
    script.report(1, Position(5), begun=False)
    script.join(0, 1)
    script.wait(6.0, 1)
    assert script.standing(0) is Standing.SUSPECT
    script.resume(1)
    assert script.look.phase is Phase.RUNNING


def test_a_rank_that_does_not_return_after_the_last_step_ends_the_run() -> None:
    script = Script(ranks=2).boot()
    script.finish(0)
    script.wait(301.0, 0, 1)
    assert script.error == "ranks 1.0 did not return from the training function after the last step"


def test_only_who_has_not_returned_is_named() -> None:
    script = Script(ranks=2).boot()
    script.finish(0)
    script.wait(294.5, 0, 1)
    script.wait(7.0, 1)
    assert script.standing(0) is Standing.SUSPECT
    assert script.error == "ranks 1.0 did not return from the training function after the last step"


def test_a_death_after_the_last_step_does_not_undo_it() -> None:
    """The last to return dies when all others have finished: what they agree on is the result."""
    script = Script(ranks=3).boot()
    script.finish(0, 2)
    script.end(1)
    if script.state.phase is not Phase.SUCCEEDED:
        script.report(0, Position(5), begun=False)
        script.report(2, Position(5), begun=False)
        script.join(0, 2)
        script.wait(1.0, 0, 2)
    assert script.look.phase is Phase.SUCCEEDED
    assert sorted(addressees(script.history, Release)) == [0, 2]


def test_silence_after_the_last_step_does_not_undo_it() -> None:
    script = Script(ranks=3).boot()
    script.finish(0, 2)
    script.wait(12.0, 0, 2)
    assert script.look.phase is Phase.SUCCEEDED


def test_a_rank_that_does_not_return_after_a_recovery_in_the_last_step_ends_the_run() -> None:
    script = Script(ranks=3).boot()
    script.finish(0)
    script.end(2)
    script.report(0, Position(5), begun=False)
    script.report(1, Position(5), begun=False)
    script.join(0, 1)
    script.wait(310.0, 0, 1)
    assert script.error == "ranks 1.0 did not return from the training function after the last step"


def test_a_death_of_one_that_has_finished_leaves_the_others_to_finish() -> None:
    script = Script(ranks=3).boot()
    script.finish(0)
    script.end(0)
    script.report(1, Position(5), begun=False)
    script.report(2, Position(5), begun=False)
    script.join(1, 2)
    script.finish(1, 2)
    assert script.look.phase is Phase.SUCCEEDED


def test_after_the_end_nothing_changes_the_verdict() -> None:
    script = Script(ranks=2).boot()
    script.finish(0, 1)
    verdict = script.look
    script.end(0)
    script.fail_in(1)
    script.tick(400.0)
    assert (script.look.phase, script.look.error) == (verdict.phase, verdict.error)
    assert script.state.phase is Phase.SUCCEEDED


def test_whoever_speaks_after_a_failure_is_told_to_end() -> None:
    script = Script(ranks=2).boot()
    script.fail_in(0, final=True)
    script.hear(1, Heartbeat(name(1), Position(0), "training"))
    assert addressees(script.answered, Fenced) == [1]
    assert script.error == "rank 0.0: ValueError: bad (train.py:1)"

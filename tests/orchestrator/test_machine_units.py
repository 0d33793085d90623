"""What is decided at a position is said by the ranks: losses before, in and between evaluations and steps."""

from everstep.actors.messages import Heartbeat, Open
from everstep.orchestrator.view import Phase
from everstep.policies.world import Position, Work, WorkKind

from .machine_script import Script, addressees, killed, name, sent

# Four ranks and eight microbatches: whoever begins plans 0: 0 1, 1: 2 3, 2: 4 5, 3: 6 7.
EVALUATION = Work(WorkKind.EVALUATION, 8)


def test_nothing_is_lost_of_what_nobody_has_begun() -> None:
    script = Script().boot()
    script.end(1)
    for rank in (0, 2, 3):
        script.report(rank, Position(3), begun=False)
    (opened,) = sent(script.answered, 0, Open)
    assert (opened.position, opened.work, opened.indices) == (Position(3), None, {})
    script.join(0, 2, 3)
    script.resume(0, 2, 3, step=3)
    (record,) = script.look.recoveries
    assert (record.step, record.lost_microbatches) == (3, ())


def test_survivors_that_have_not_begun_get_their_share_and_only_that_of_the_dead_is_lost() -> None:
    script = Script().boot()
    script.end(1)
    script.report(0, done=(0,), owed=(1,))
    script.report(2, begun=False)
    script.report(3, begun=False)
    (opened,) = sent(script.answered, 0, Open)
    assert opened.work == script.training
    assert opened.indices == {"rank-0": (0, 1, 4, 7), "rank-2": (2, 5), "rank-3": (3, 6)}
    assert script.state.recovery is not None
    assert script.state.recovery.lost_microbatches == (2, 3)


def test_what_one_had_begun_dies_with_it() -> None:
    script = Script().boot()
    script.end(1)
    script.report(2, begun=False)
    script.report(0, done=(0,), owed=(1,))
    script.end(0)
    script.report(3, begun=False)
    (opened,) = sent(script.answered, 2, Open)
    assert (opened.work, opened.indices) == (None, {})


def test_who_has_begun_nothing_plans_in_the_world_of_the_last_open() -> None:
    """The second loss finds survivors who would have planned for three."""
    script = Script().boot()
    script.end(1)
    for rank in (0, 2, 3):
        script.report(rank, begun=False)
    script.end(2)
    script.report(0, done=(), owed=(0, 1, 2))
    script.report(3, begun=False)
    (opened,) = sent(script.answered, 3, Open)
    assert opened.indices == {"rank-0": (0, 1, 2, 6), "rank-3": (3, 4, 5, 7)}
    assert script.state.recovery is not None
    assert script.state.recovery.lost_microbatches == (3, 4, 5)


def test_an_evaluation_is_extended_like_a_step() -> None:
    script = Script().boot()
    evaluation = Work(WorkKind.EVALUATION, 5)
    position = Position(2, unit=1)
    script.end(3)
    script.report(0, position, done=(0, 1), owed=(), work=evaluation)
    script.report(1, position, done=(2,), owed=(), work=evaluation)
    # Still at the evaluation before, whose vote it had entered.
    script.report(2, Position(2), done=(4,), owed=())
    (opened,) = sent(script.answered, 2, Open)
    assert (opened.position, opened.work) == (position, evaluation)
    assert opened.indices == {"rank-0": (0, 1, 3), "rank-1": (2, 4), "rank-2": ()}


def test_an_evaluation_may_be_over_fewer_microbatches_than_ranks() -> None:
    script = Script().boot()
    script.end(0)
    evaluation = Work(WorkKind.EVALUATION, 1)
    for rank in (1, 2, 3):
        script.report(rank, Position(1), owed=(), work=evaluation)
    (opened,) = sent(script.answered, 1, Open)
    assert opened.indices == {"rank-1": (0,), "rank-2": (), "rank-3": ()}


def test_after_the_last_step_there_may_be_an_evaluation_or_nothing() -> None:
    script = Script(steps=5).boot()
    script.end(1)
    script.report(0, Position(5), begun=False)
    script.report(2, Position(4), done=(4, 5))
    script.report(3, Position(5), begun=False)
    (opened,) = sent(script.answered, 2, Open)
    assert (opened.position, opened.work, opened.indices) == (Position(5), None, {})
    script = Script(steps=5).boot()
    script.end(1)
    script.report(0, Position(5), owed=(0, 1), work=EVALUATION)
    script.report(2, Position(5), begun=False)
    script.report(3, Position(5), begun=False)
    (opened,) = sent(script.answered, 2, Open)
    assert opened.work == EVALUATION
    assert sorted(index for given in opened.indices.values() for index in given) == list(range(8))


# --- members that do not do the same


def test_members_that_do_different_things_at_one_position_end_the_run() -> None:
    script = Script().boot()
    script.end(1)
    script.report(3, Position(2), done=(6,), owed=(7,))
    script.report(0, Position(2), begun=False)
    script.report(2, Position(2), owed=(4, 5), work=EVALUATION)
    assert script.error == (
        "at step 2 rank 2.0 does evaluation over 8 microbatches, rank 3.0 training over 8 microbatches: "
        "every rank must call run.evaluate alike"
    )
    assert killed(script.answered) == [0, 2, 3]
    assert addressees(script.history, Open) == [0, 1, 2, 3], "only the first generation was opened"


def test_evaluations_over_different_data_end_the_run() -> None:
    script = Script(ranks=3).boot()
    script.end(0)
    script.report(1, Position(2, unit=1), owed=(), work=Work(WorkKind.EVALUATION, 4))
    script.report(2, Position(2, unit=1), owed=(), work=Work(WorkKind.EVALUATION, 5))
    assert script.error.startswith("at step 2, unit 1 rank 1.0 does evaluation over 4 microbatches, rank 2.0 ")


def test_members_at_different_positions_may_do_different_things() -> None:
    script = Script(ranks=3).boot()
    script.end(0)
    script.report(1, Position(2), done=(3, 4, 5), owed=(), work=EVALUATION)
    script.report(2, Position(2, unit=1), owed=(6, 7))
    assert script.look.phase is Phase.RECOVERING
    (opened,) = sent(script.answered, 1, Open)
    assert (opened.position, opened.work) == (Position(2, unit=1), script.training)


# --- without a loss


def beat(script: Script, rank: int, position: Position, work: Work | None) -> None:
    script.hear(rank, Heartbeat(name(rank), position, "training", work=work))


def test_members_that_do_different_things_are_found_out_while_nobody_dies() -> None:
    """They would wait for each other until the time-out of a collective."""
    script = Script(ranks=3).boot()
    beat(script, 2, Position(3), script.training)
    beat(script, 0, Position(3), None)
    assert script.state.phase is Phase.RUNNING
    beat(script, 0, Position(3), EVALUATION)
    assert script.error == (
        "at step 3 rank 0.0 does evaluation over 8 microbatches, rank 2.0 training over 8 microbatches: "
        "every rank must call run.evaluate alike"
    )
    assert killed(script.answered) == [0, 1, 2]


def test_who_goes_through_the_same_one_after_the_other_agrees() -> None:
    """One is ahead, and works at what the other comes to only later."""
    script = Script(ranks=2).boot()
    for step in range(1, 9):
        for rank, lag in ((0, 0), (1, 1)):
            place = Position(step - lag)
            beat(script, rank, place, EVALUATION)
            beat(script, rank, Position(step - lag, unit=1), script.training)
    assert script.state.phase is Phase.RUNNING
    assert len(script.state.begun) <= 4, "what is over is forgotten"

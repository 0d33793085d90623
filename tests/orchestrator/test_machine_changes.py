"""Spares that are swapped in, ranks that join, and ranks that leave."""

from dataclasses import replace

from everstep.actors.messages import Heartbeat, Raised, Release, Report
from everstep.orchestrator.machine.events import (
    Ended,
    NodeDraining,
    Resize,
    StartRank,
)
from everstep.orchestrator.machine.state import Standing
from everstep.orchestrator.view import Phase
from everstep.policies.recovery import Swap
from everstep.policies.world import Position, Work, WorkKind

from .machine_script import Script, addressees, name, prepared
from .world_changes import arrive, asked, begins, opened, replicas

EVALUATION = Work(WorkKind.EVALUATION, 8)
# After one evaluation.
STEP = Position(0, 1)


# --- spares


def test_a_spare_takes_the_seat_of_the_dead_and_only_what_that_one_had_is_computed_again() -> None:
    script = Script(spares=1, recovery=Swap()).boot()
    assert (script.look.world, script.look.parked) == (4, 1)
    script.end(1)
    script.report(0, done=(0, 1))
    script.report(2, done=(4,))
    script.report(3, done=())
    message = opened(script)
    assert [(member.incarnation, member.seat.replica) for member in message.world.members] == [
        ("rank-0", 0),
        ("rank-4", 1),
        ("rank-2", 2),
        ("rank-3", 3),
    ]
    assert message.sources == {"rank-4": "rank-0"}
    # Rank 0 is done with its own, so it helps.
    assert message.indices == {"rank-0": (0, 1, 2), "rank-4": (3,), "rank-2": (4, 5), "rank-3": (6, 7)}
    assert opened(script, 4) == message
    assert "completed by spares" in script.look.decision
    assert script.look.parked == 0
    script.join(0, 2, 3, 4)
    script.resume(0, 2, 3, 4)
    (record,) = script.look.recoveries
    assert (record.world_before, record.world_after, record.lost_microbatches) == (4, 4, (2, 3))


def test_a_spare_that_dies_while_it_comes_in_is_followed_by_the_next_and_then_by_nobody() -> None:
    script = Script(spares=2, recovery=Swap()).boot()
    script.end(1)
    for rank in (0, 2, 3):
        script.report(rank)
    assert opened(script).sources == {"rank-4": "rank-0"}
    script.end(4)
    for rank in (0, 2, 3):
        script.report(rank)
    assert opened(script).sources == {"rank-5": "rank-0"}
    script.end(5)
    for rank in (0, 2, 3):
        script.report(rank)
    assert replicas(script) == (0, 2, 3)
    assert script.look.phase is Phase.RECOVERING


def test_a_spare_is_not_needed_when_a_spare_dies() -> None:
    script = Script(spares=1).boot()
    script.end(4)
    assert prepared(script.answered) == []
    assert (script.look.parked, script.look.phase) == (0, Phase.RUNNING)


def test_a_spare_whose_source_died_is_given_another_one() -> None:
    script = Script(spares=1, recovery=Swap()).boot()
    script.end(1)
    for rank in (0, 2, 3):
        script.report(rank)
    assert opened(script).sources == {"rank-4": "rank-0"}
    script.end(0)
    lacking = Report(name(4), script.generation, Position(0), frozenset(), frozenset((2, 3)), None, None,
                     script.training, lacks=True)  # fmt: skip
    script.hear(4, lacking)
    script.report(2)
    script.report(3)
    message = opened(script, 4)
    assert message.sources == {"rank-4": "rank-2"}
    assert sorted(index for indices in message.indices.values() for index in indices) == list(range(8))


def test_nobody_comes_in_at_an_evaluation_but_at_the_next_training_step() -> None:
    """Whoever comes in begins its loop at a training step, and would not come to the evaluation."""
    script = Script(spares=1, recovery=Swap()).boot()
    script.end(1)
    for rank in (0, 2, 3):
        script.report(rank, work=EVALUATION)
    assert replicas(script) == (0, 2, 3)
    assert "the next training step" in script.look.decision
    script.join(0, 2, 3)
    script.resume(0, 2, 3)
    script.hear(0, Heartbeat(name(0), STEP, "training", work=script.training))
    assert [rank for rank, _ in prepared(script.answered)] == [0, 2, 3]
    assert script.look.phase is Phase.RUNNING, "that is no failure"
    for rank, owed in ((0, (0, 1, 2)), (2, (3, 4, 5)), (3, (6, 7))):
        script.report(rank, STEP, owed=owed)
    message = opened(script, 4)
    assert message.world.replicas == (0, 1, 2, 3)
    assert message.indices["rank-4"] == ()
    script.join(0, 2, 3, 4)
    script.resume(0, 2, 3, 4)
    assert len(script.look.recoveries) == 1


def test_a_spare_that_has_built_something_else_is_shut_out() -> None:
    script = Script(spares=1)
    script.start()
    script.greet(*range(5))
    script.ready(*range(4))
    assert script.look.phase is Phase.RUNNING
    script.ready(4, weight="other")
    assert script.standing(4) is Standing.FENCED
    assert "initial state of weight" in script.state.ranks[name(4)].cause
    assert script.look.phase is Phase.RUNNING


# --- joining


def test_every_rank_that_is_gone_is_replaced_if_that_is_wanted() -> None:
    script = Script(replaces=True).boot()
    script.end(1)
    (newcomer,) = asked(script)
    script.recover(0, 2, 3)
    arrive(script, newcomer)
    assert script.look.phase is Phase.RUNNING
    begins(script, 0, 1)
    for rank in (0, 2, 3):
        script.report(rank, Position(1), done=(), owed=())
    message = opened(script)
    assert message.world.replicas == (0, 1, 2, 3)
    assert message.sources == {newcomer: "rank-0"}
    assert asked(script) == [newcomer]


def test_ranks_that_do_not_start_are_not_asked_for_without_pause() -> None:
    script = Script(replaces=True).boot()
    script.end(1)
    script.recover(0, 2, 3)
    waits = []
    for _ in range(4):
        newest = asked(script)[-1]
        script.happen(Ended(newest, "it did not start"))
        began = script.now
        while asked(script)[-1] == newest:
            script.wait(0.5, 0, 2, 3)
        waits.append(script.now - began)
    assert waits == [1.0, 2.0, 4.0, 8.0]


def test_the_world_grows_when_more_are_wanted() -> None:
    script = Script(ranks=2, microbatches=8).boot()
    begins(script, 0)
    script.happen(Resize(3))
    (newcomer,) = asked(script)
    assert script.look.target == 3
    arrive(script, newcomer)
    begins(script, 0, 1)
    for rank in (0, 1):
        script.report(rank, Position(1), done=(0, 1) if rank == 0 else (4,), owed=(2, 3) if rank == 0 else (5, 6, 7))
    message = opened(script)
    assert message.world.replicas == (0, 1, 2)
    assert message.indices[newcomer] == ()
    assert script.look.recoveries == ()


# --- leaving


def shrink_to(script: Script, replicas: int, rank_done: dict[int, tuple[int, ...]]) -> None:
    """The world is told to shrink while its ranks have done this much of step 0."""
    begins(script, 0)
    script.happen(Resize(replicas))
    for rank, done in rank_done.items():
        script.report(rank, done=done)


def test_a_rank_that_leaves_goes_on_with_what_it_has_and_then_is_let_go() -> None:
    script = Script(ranks=3, microbatches=6).boot()
    shrink_to(script, 2, {0: (0,), 1: (), 2: (4,)})
    message = opened(script)
    assert message.leaving == frozenset({"rank-2"})
    assert message.indices == {"rank-0": (0, 1), "rank-1": (2, 3), "rank-2": (4, 5)}
    script.join(0, 1, 2)
    script.resume(0, 1, 2)
    begins(script, 0, 1)
    assert [rank for rank, _ in prepared(script.answered)] == [0, 1, 2]
    for rank, owed in ((0, (0, 1, 2)), (1, (3, 4, 5)), (2, ())):
        script.report(rank, Position(1), done=(), owed=owed)
    assert replicas(script) == (0, 1)
    assert addressees(script.history, Release) == [2]
    assert script.standing(2) is Standing.LEFT
    script.join(0, 1)
    script.resume(0, 1, step=1)
    script.end(2)
    assert (script.look.recoveries, script.look.first_cause, script.look.phase) == ((), None, Phase.RUNNING)


def test_a_rank_that_was_given_lost_microbatches_while_it_leaves_stays_until_they_are_done() -> None:
    script = Script(ranks=3, microbatches=6).boot()
    shrink_to(script, 2, {0: (0,), 1: (), 2: (4,)})
    script.end(1)
    script.report(0, done=(0, 1))
    script.report(2, done=(4, 5))
    assert opened(script, 2).indices["rank-2"] == (3, 4, 5) or opened(script, 2).indices["rank-2"] == (2, 4, 5)
    assert "rank-2" in opened(script).world.incarnations


def test_nobody_leaves_below_the_minimum() -> None:
    script = Script(ranks=3, minimum=2).boot()
    begins(script, 0)
    script.happen(Resize(1))
    assert "fewer than the minimum of 2" in script.look.warnings[0]
    assert prepared(script.answered) == []


def test_a_death_while_ranks_leave_is_a_recovery() -> None:
    script = Script(ranks=4).boot()
    begins(script, 0)
    script.happen(Resize(3))
    assert script.look.phase is Phase.RUNNING
    script.end(0)
    assert script.look.phase is Phase.RECOVERING
    for rank in (1, 2, 3):
        script.report(rank)
    script.join(1, 2, 3)
    script.resume(1, 2, 3)
    (record,) = script.look.recoveries
    assert record.cause == "rank 0.0: its process ended with signal 9"


def test_a_node_that_is_drained_is_left_and_others_are_asked_for_elsewhere() -> None:
    script = Script(ranks=3, replaces=True)
    script.start()
    script.greet(0, 1)
    script.greet(2, node="old")
    script.ready(0, 1, 2)
    begins(script, 0)
    script.happen(NodeDraining("old", "maintenance"))
    (start,) = [action for action in script.answered if isinstance(action, StartRank)]
    assert start.avoid == {"old"}
    for rank in (0, 1, 2):
        script.report(rank)
    assert opened(script).leaving == {"rank-2"}
    assert {member.incarnation: member.status for member in script.look.members}["rank-2"] == "leaving"


def test_ranks_that_fail_before_they_come_in_end_no_run() -> None:
    """The same error on two ranks that train would."""
    script = Script(spares=2).boot()
    failed = Raised("", Position(0), None, (), "OSError at disk.py:3", "the disk is full", "Traceback", final=True)
    for rank in (4, 5):
        script.hear(rank, replace(failed, incarnation=name(rank)))
        script.end(rank)
    assert script.look.phase is Phase.RUNNING
    assert script.look.warnings == ("ranks that are started beside those that train fail: the disk is full",)
    script.hear(0, replace(failed, incarnation=name(0)))
    assert script.look.phase is Phase.FAILED


def test_ranks_that_come_in_and_end_with_nothing_computed_are_not_hurried() -> None:
    """Each of them stops the others for a moment: there are more and more steps between two."""
    script = Script(ranks=2, replaces=True).boot()
    script.wait(1.0, 0, 1)
    script.end(1)
    script.report(0, done=(0,))
    script.join(0)
    script.resume(0)
    pauses = []
    for count in range(1, 5):
        while len(asked(script)) < count:
            script.wait(0.5, 0)
            pauses[-1] += 0.5
        newcomer = asked(script)[-1]
        arrive(script, newcomer)
        begins(script, 0, step=count)
        script.report(0, Position(count))
        assert newcomer in opened(script).sources
        script.happen(Ended(newcomer, "no state came"))
        script.report(0, Position(count))
        script.join(0)
        script.resume(0)
        pauses.append(0.0)
    assert pauses[:3] == [1.0, 2.0, 4.0]

"""Spares that are swapped in, ranks that join and leave, nodes, and waiting: everything that changes the world."""

import pytest
from everstep.actors.messages import Heartbeat, Hello, Hold, Open, Ready, Release, Report, Restore
from everstep.orchestrator.machine.events import (
    Ended,
    Heard,
    KillRank,
    NodeDraining,
    NodeLost,
    Resize,
    Room,
    Saved,
    Send,
    StartRank,
)
from everstep.orchestrator.machine.state import Standing
from everstep.orchestrator.view import Phase
from everstep.policies.placement import Node
from everstep.policies.recovery import Auto, RecoveryPolicy, Restart, Shrink, Swap
from everstep.policies.world import Position, Work, WorkKind

from .machine_script import Script, addressees, killed, name, prepared, sent

EVALUATION = Work(WorkKind.EVALUATION, 8)
# After one evaluation.
STEP = Position(0, 1)


def opened(script: Script, rank: int = 0) -> Open:
    """The newest generation, as this rank was told of it."""
    return sent(script.history, rank, Open)[-1]


def begins(script: Script, rank: int, step: int = 0, work: Work | None = None) -> None:
    """Its heartbeat tells that it works at a step."""
    script.hear(rank, Heartbeat(name(rank), Position(step), "training", work=work or script.training))


def asked(script: Script) -> list[str]:
    """Incarnations that the machine asked for of its own accord."""
    starts = [action for action in script.history if isinstance(action, StartRank)]
    return [start.incarnation for start in starts if not start.incarnation.startswith("rank-")]


def arrive(script: Script, incarnation: str, node: str = "node") -> None:
    """A rank that was asked for starts, and stands in begin."""
    script.happen(Heard(incarnation, Hello(incarnation, 7, node)))
    script.happen(Heard(incarnation, Ready(incarnation, {"weight": "digest"}, script.steps)))


def replicas(script: Script) -> tuple[int, ...]:
    assert script.state.world is not None
    return script.state.world.replicas


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


# --- nodes


def test_a_lost_node_takes_all_its_ranks_at_once() -> None:
    script = Script(ranks=4)
    script.start()
    script.greet(0, 1, node="a")
    script.greet(2, 3, node="b")
    script.ready(0, 1, 2, 3)
    script.happen(NodeLost("b", "no sign of life"))
    assert killed(script.answered) == [2, 3]
    assert script.look.first_cause == "rank 2.0: node b: no sign of life"
    script.wait(script.timeouts.confirm + 0.5, 0, 1)
    for rank in (0, 1):
        script.report(rank)
    assert replicas(script) == (0, 1)
    # It comes back, and is told that it was given up.
    script.beat(2)
    assert any(isinstance(action, Send) and action.incarnation == name(2) for action in script.answered)


def test_a_node_that_fails_again_and_again_is_avoided() -> None:
    script = Script(ranks=3, replaces=True, minimum=1)
    script.start()
    for rank, node in enumerate(("a", "b", "c", "d")[:3]):
        script.greet(rank, node=node)
    script.ready(0, 1, 2)
    newest = name(2)
    for _ in range(3):
        script.happen(Ended(newest, "it broke"))
        for rank in (0, 1):
            script.report(rank, done=(), owed=()) if script.state.recovery else None
        newest = asked(script)[-1]
        script.happen(Heard(newest, Hello(newest, 9, "c")))
        script.wait(10.0, 0, 1)
    starts = [action for action in script.history if isinstance(action, StartRank)]
    assert starts[-1].avoid == frozenset()
    nodes = {"a": "x", "b": "y", "d": "z", "e": "w"}
    for node in nodes:
        script.happen(Resize(script.state.target + 1))
        extra = asked(script)[-1]
        script.happen(Heard(extra, Hello(extra, 9, node)))
    script.happen(Ended(newest, "it broke"))
    script.wait(10.0, 0, 1)
    starts = [action for action in script.history if isinstance(action, StartRank)]
    assert starts[-1].avoid == {"c"}


def test_spares_are_asked_for_away_from_each_other_and_from_the_members() -> None:
    """Two zones: the members fill one node of the first; what is asked for goes to the other zone, then elsewhere."""
    nodes = (Node("a", zone="1", room=1), Node("b", zone="1", room=4), Node("c", zone="2", room=4))
    script = Script(ranks=3)
    script.start()
    script.greet(0, 1, 2, node="a")
    script.ready(0, 1, 2)
    script.happen(Room(9, nodes))
    script.happen(Resize(5))
    starts = [action for action in script.answered if isinstance(action, StartRank)]
    assert [start.node for start in starts] == ["b", "c"]
    script.happen(NodeDraining("c", "maintenance"))
    script.happen(Resize(6))
    (start,) = [action for action in script.answered if isinstance(action, StartRank)]
    assert (start.node, start.avoid) == ("b", {"c"})


# --- waiting


@pytest.mark.parametrize("policy", [Swap(30.0), Shrink(30.0), Auto(None, 600.0, 30.0)])
def test_below_the_minimum_the_run_waits_by_name_and_goes_on_when_enough_have_come(policy: RecoveryPolicy) -> None:
    script = Script(ranks=3, minimum=3, recovery=policy).boot()
    script.end(2)
    script.report(0, done=(0,))
    script.report(1)
    assert script.look.phase is Phase.WAITING
    assert "2 of 3 replicas are left, the minimum is 3" in script.look.reason
    assert "until 30 s from now" in script.look.reason
    assert addressees(script.answered, Hold) == [0, 1]
    (hold,) = sent(script.answered, 0, Hold)
    assert hold.seconds > 30.0
    (newcomer,) = asked(script)
    script.wait(10.0, 0, 1)
    assert script.look.phase is Phase.WAITING
    arrive(script, newcomer)
    message = opened(script)
    assert message.sources == {newcomer: "rank-0"}
    assert message.indices["rank-0"][0] == 0
    assert script.look.phase is Phase.RECOVERING


def test_patience_ends_with_a_line_that_says_how_long_and_for_what() -> None:
    script = Script(ranks=3, minimum=3, recovery=Shrink(30.0)).boot()
    script.end(2)
    script.report(0)
    script.report(1)
    script.wait(29.5, 0, 1)
    assert script.look.phase is Phase.WAITING
    script.wait(1.5, 0, 1)
    assert "2 of 3 replicas are left, the minimum is 3; waited 30" in script.error
    assert "first cause: rank 2.0" in script.error


def test_a_death_while_it_waits_makes_it_wait_for_more() -> None:
    script = Script(ranks=3, minimum=3, recovery=Shrink(30.0)).boot()
    script.end(2)
    script.report(0)
    script.report(1)
    script.end(1)
    assert script.look.phase is Phase.WAITING
    assert "waiting for 2 more" in script.look.reason
    assert len(asked(script)) == 2


# --- restoring


def test_all_dead_is_survivable_with_a_snapshot() -> None:
    script = Script(ranks=2, spares=2, recovery=Swap(), steps=50).boot()
    script.happen(Saved("vault", 7))
    for rank in (0, 1):
        script.beat(rank, 9)
    script.end(0)
    script.end(1)
    message = opened(script, 2)
    assert message.restore == Restore("vault", 7)
    assert (message.position, message.work) == (Position(7), None)
    assert message.sources == {"rank-2": "rank-2", "rank-3": "rank-3"}


def test_restart_goes_back_although_others_live() -> None:
    script = Script(ranks=3, recovery=Restart(), steps=50).boot()
    script.happen(Saved("storage", 4))
    script.end(1)
    script.report(0, Position(6))
    script.report(2, Position(6))
    message = opened(script)
    assert message.restore == Restore("storage", 4)
    assert "2 steps back" in script.look.decision


def test_auto_says_what_it_chose_and_against_what() -> None:
    script = Script(ranks=3, spares=1, recovery=Auto(), steps=1000).boot()
    script.end(1)
    script.report(0)
    script.report(2)
    assert script.look.decision.startswith("swap: ")
    assert " for shrink over the next " in script.look.decision


def test_room_in_the_cluster_is_told_to_the_policy() -> None:
    script = Script(ranks=2, minimum=2, recovery=Shrink(60.0)).boot()
    script.happen(Room(4))
    assert script.state.room == 4


# --- replicas of several ranks


def test_an_orphan_completes_another_replica() -> None:
    """Replicas of two: 0 loses its second rank and 1 its first; one replica is made of the two that are left."""
    script = Script(ranks=6, size=2, recovery=Swap()).boot()
    script.end(1, 2)
    for rank in (0, 3, 4, 5):
        script.report(rank, done=(), owed=())
    message = opened(script)
    members = {member.incarnation: str(member.seat) for member in message.world.members}
    assert members == {"rank-0": "1.0", "rank-3": "1.1", "rank-4": "2.0", "rank-5": "2.1"}
    # Both hold the state of their coordinate, and both begin the step anew.
    assert message.sources == {"rank-0": "rank-0", "rank-3": "rank-3"}
    assert message.indices["rank-0"] == message.indices["rank-3"] != ()


def test_orphans_that_complete_nobody_are_spares() -> None:
    script = Script(ranks=4, size=2, recovery=Shrink()).boot()
    script.end(1)
    for rank in (0, 2, 3):
        script.report(rank, owed=())
    assert replicas(script) == (1,)
    assert script.look.parked == 1
    assert addressees(script.answered, Hold) == [0]
    assert killed(script.answered) == []


def test_a_rank_without_a_seat_is_killed_by_nobody() -> None:
    script = Script(spares=1).boot()
    script.wait(20.0, *range(5))
    assert not [action for action in script.history if isinstance(action, KillRank)]

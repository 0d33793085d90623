"""Lost nodes, waiting for capacity, going back to what was saved, and replicas of several ranks."""

import pytest
from everstep.actors.messages import Finished, Hello, Hold, Restore
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
from everstep.policies.world import Position

from .machine_script import Script, addressees, killed, name, sent
from .world_changes import arrive, asked, opened, replicas

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
    assert message.restore == Restore("vault", 7, times=1)
    assert (message.position, message.work) == (Position(7), None)
    assert message.sources == {"rank-2": "rank-2", "rank-3": "rank-3"}


def test_when_all_are_lost_those_who_start_are_waited_for_but_not_for_ever() -> None:
    script = Script(ranks=3, recovery=Swap(60.0), replaces=True, steps=50).boot()
    script.happen(Saved("storage", 4))
    script.end(0, 1, 2)
    first, second, _ = asked(script)
    script.wait(4.0)
    arrive(script, first)
    assert script.look.phase is Phase.WAITING
    assert "the others are starting" in script.look.reason
    arrive(script, second)
    assert script.look.phase is Phase.WAITING
    # They took four seconds to start: twice that is long enough.
    script.wait(5.0)
    assert script.state.world is not None
    assert script.state.world.incarnations == (first, second)


def test_restart_goes_back_although_others_live() -> None:
    script = Script(ranks=3, recovery=Restart(), steps=50).boot()
    script.happen(Saved("storage", 4))
    script.end(1)
    script.report(0, Position(6))
    script.report(2, Position(6))
    message = opened(script)
    assert message.restore == Restore("storage", 4, times=1)
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


def test_ranks_that_start_make_a_replica_together_with_those_that_are_ready() -> None:
    script = Script(ranks=2, size=2, recovery=Swap(10.0), replaces=True, steps=50).boot()
    script.happen(Saved("storage", 4))
    script.end(0, 1)
    first, second = asked(script)
    script.wait(12.0)
    arrive(script, first)
    assert script.look.phase is Phase.WAITING
    arrive(script, second)
    assert script.state.opened is not None
    assert script.state.opened.restore == Restore("storage", 4, times=1)


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


@pytest.mark.parametrize("finished", [(), (0,)])
def test_nobody_is_waited_for_when_all_steps_are_applied(finished: tuple[int, ...]) -> None:
    script = Script(ranks=3, minimum=3, recovery=Shrink(patience=60.0)).boot()
    script.finish(*finished)
    script.end(2)
    for rank in (0, 1):
        script.report(rank, Position(script.steps), begun=False)
    assert replicas(script) == (0, 1)
    assert script.look.decision == "all steps are applied: nobody else is needed"
    script.join(0, 1)
    script.finish(0, 1)
    assert script.look.phase is Phase.SUCCEEDED


def test_one_step_earlier_too_few_wait_for_others() -> None:
    script = Script(ranks=3, minimum=3, recovery=Shrink(patience=60.0)).boot()
    script.end(2)
    for rank in (0, 1):
        script.report(rank, Position(script.steps - 1), begun=False)
    assert script.look.phase is Phase.WAITING


def test_a_rank_that_had_finished_before_all_went_back_has_not_finished() -> None:
    """Half of the only replica is lost after the last step, and with it half of the state."""
    script = Script(ranks=2, size=2, spares=1, recovery=Restart()).boot()
    script.happen(Saved("storage", 3))
    early = Finished(name(0), script.generation, "weights", 0.5, script.steps, 10)
    script.hear(0, early)
    assert script.standing(0) is Standing.FINISHED
    script.end(1)
    script.report(0, Position(script.steps), begun=False)
    restore = opened(script).restore
    assert restore is not None
    assert (restore.source, restore.step) == ("storage", 3)
    before = script.state
    assert script.hear(0, early) == []
    assert script.state == before
    assert script.standing(0) is Standing.MEMBER
    script.finish(0, 2)
    assert script.look.phase is Phase.SUCCEEDED

"""What comes when a run is about to end or has ended, and what comes from whom the machine does not know."""

from everstep.actors.messages import FaultFired
from everstep.actors.node.sentinel_messages import SentinelHello
from everstep.actors.saving_messages import Cadence
from everstep.orchestrator.machine.events import Ended, Heard, Room, StartSentinel
from everstep.orchestrator.view import Phase
from everstep.policies.placement import Node

from .machine_script import Script, killed, name
from .test_machine_nodes import GIVEN_UP_S, TIMEOUTS, Watched


def test_the_loss_of_a_node_may_be_the_end_of_the_run() -> None:
    """Who lived there is all that the others, who have finished, had waited for; nobody else is looked at then."""
    held = Watched()
    script = held.script
    script.finish(2, 3)
    held.wait(GIVEN_UP_S + 1.0, nodes="")
    assert script.look.phase is Phase.SUCCEEDED
    assert held.lost == ["a"]
    assert killed(script.history) == [0, 1]
    before = script.state
    held.beat("b")
    assert (script.answered, script.state) == ([], before), "no node is watched any more"


def test_when_the_run_has_ended_the_end_of_the_last_rank_is_no_loss_of_a_node() -> None:
    held = Watched()
    script = held.script
    held.end_sentinel("b")
    script.fail_in(0, final=True)
    assert script.look.phase is Phase.FAILED
    script.end(2, 3)
    assert held.lost == []


def test_all_are_lost_with_their_node() -> None:
    """The last end is the end of the run: there is nobody left for whom the node would matter."""
    script = Script(ranks=1, timeouts=TIMEOUTS).start()
    script.happen(Room(9, (Node("a"), Node("b"))))
    script.greet(0, node="a")
    script.ready(0)
    script.beat(0)
    (start,) = [action for action in script.history if isinstance(action, StartSentinel)]
    script.happen(Heard(start.incarnation, SentinelHello(start.incarnation, "a", 500)))
    script.happen(Ended(start.incarnation, "its connection ended"))
    script.end(0)
    assert script.look.phase is Phase.FAILED
    assert script.records("node lost") == []


def test_a_fault_that_hits_nobody_whom_the_machine_knows_is_noted_all_the_same() -> None:
    """It is about to hit a vault."""
    script = Script().boot()
    script.happen(Heard("vault-a", FaultFired("vault-a", "sigkill of a vault", "pid 9")))
    assert script.look.faults_fired == ("sigkill of a vault: pid 9",)


def test_how_often_is_saved_is_shown() -> None:
    script = Script().boot()
    script.hear(0, Cadence(name(0), "checkpoint", "every 40 steps"))
    script.hear(0, Cadence(name(0), "snapshot", "every 4 steps"))
    script.hear(0, Cadence(name(0), "checkpoint", "every 50 steps"))
    assert script.look.cadence == {"checkpoint": "every 50 steps", "snapshot": "every 4 steps"}

"""An alarm is answered once, whoever tells it, whatever dies meanwhile; and what was decided is done."""

import json
from dataclasses import asdict, replace

from everstep.actors.messages import Heartbeat, Open, Prepare
from everstep.actors.stability_messages import StabilityTold
from everstep.conf.remedy import OnInstability, Remedy
from everstep.monitors.certification import Trust
from everstep.monitors.envelope import Alarm, Band
from everstep.monitors.signs import HYPER
from everstep.orchestrator.machine.events import EndRun, Saved
from everstep.orchestrator.machine.memory import inherited, note
from everstep.orchestrator.machine.past import fold
from everstep.orchestrator.machine.trust import STABILITY, marks
from everstep.orchestrator.view import Phase
from everstep.policies.changes import Change
from everstep.policies.values import changed
from everstep.policies.world import Position
from hypothesis import given
from hypothesis import strategies as st

from .machine_script import Script, name, sent

WATCHED = "every 10 steps 4 heads of 2 layers"
REMEDY = Remedy(learning_rate=0.5, times=2)


def alarm(step: int, head: int = 0) -> Alarm:
    sentence = f"a head {head}: attention delta2.entropy is 1, below 2, since step {step - 10}"
    return Alarm(step, step - 10, "attention", "a", head, "delta2.entropy", 1.0, Band(2.0, 4.0), HYPER, sentence)


HEALTHY = StabilityTold(WATCHED, 0, Trust(20, 30, 30))
ILL = StabilityTold(WATCHED, 0, Trust(20, None, 50, "outside"), (alarm(49), alarm(49, 1)))
AFTER = StabilityTold(WATCHED, 1, Trust(20, None, 20))


def script(on: OnInstability = OnInstability.ROLLBACK) -> Script:
    held = Script(ranks=3, steps=100).boot()
    settings = replace(held.state.settings, on_instability=on, remedy=REMEDY, cadences={STABILITY: 10})
    held.state = changed(held.state, settings=settings)
    for step in (10, 20, 30):
        held.happen(Saved("storage", step))
    return held


def tell(held: Script, rank: int, told: StabilityTold, step: int = 55) -> None:
    generation = held.generation
    held.hear(rank, Heartbeat(name(rank), Position(step), "training", generation=generation, stability=told))


def ill(on: OnInstability = OnInstability.ROLLBACK) -> Script:
    held = script(on)
    for rank in range(3):
        tell(held, rank, HEALTHY)
    tell(held, 1, ILL)
    return held


def back(held: Script, told: StabilityTold = AFTER) -> None:
    """Everybody goes back, and says so."""
    for rank in range(3):
        held.report(rank, Position(55))
    held.join(0, 1, 2)
    held.resume(0, 1, 2, step=told.trust.verified or 0)
    for rank in range(3):
        tell(held, rank, told, 21)


def test_all_go_back_to_what_was_healthy_and_on_with_a_change() -> None:
    held = ill()
    change = Change(1, 20, alarm(49).sentence, 0, 0.5)
    assert held.state.changes == (change,)
    assert all(sent(held.answered, rank, Prepare) for rank in range(3))
    tell(held, 0, ILL)
    tell(held, 2, ILL)
    back(held)
    opened = held.state.opened
    assert isinstance(opened, Open)
    assert opened.restore is not None
    assert (opened.position, opened.restore.step, opened.restore.changes) == (Position(20), 20, (change,))
    assert held.look.phase is Phase.RUNNING
    (verdict,) = held.look.verdicts
    assert (verdict.kind, verdict.outcome, verdict.step) == ("stability", "alarm", 50)
    assert verdict.evidence["fits"] == [HYPER]
    assert len(verdict.evidence["alarms"]) == 2
    assert held.look.stability == f"watches {WATCHED}; no alarm; different from step 20 on: learning rates times 0.5"
    assert len(held.records("going back")) == 1
    # A rank that is stopped may say later what it had seen before.
    tell(held, 0, ILL)
    assert len(held.look.verdicts) == 1


def test_what_comes_again_is_answered_again_but_not_for_ever() -> None:
    held = ill()
    for number in (1, 2):
        told = StabilityTold(WATCHED, number, Trust(20, None, 20))
        back(held, told)
        tell(held, 0, replace(told, trust=Trust(20, None, 50, "outside"), alarms=(alarm(49),)))
    assert [one.number for one in held.state.changes] == [1, 2]
    assert held.look.verdicts[-1].done == "nothing more: everybody went back 2 times already"
    assert len(held.look.verdicts) == 3


def test_what_is_healthy_stays_and_what_was_so_at_the_alarm() -> None:
    held = ill(OnInstability.HOLD)
    assert held.look.verdicts[-1].done == "the state after 20 steps, which was healthy, is kept"
    assert 20 in marks(held.state).steps
    tell(held, 0, replace(ILL, trust=Trust(90, 100, 100)), 100)
    assert {20, 90, 100} <= set(marks(held.state).steps)
    assert held.look.phase is Phase.RUNNING


def test_only_observed_and_the_end() -> None:
    held = ill(OnInstability.OBSERVE)
    assert held.look.verdicts[-1].done == "nothing: elastic.on_instability is observe"
    assert marks(held.state).steps == ()
    assert ": a head 0: attention" in ill(OnInstability.STOP).look.reason
    stopped = ill(OnInstability.STOP)
    assert stopped.look.phase is Phase.FAILED
    assert any(isinstance(action, EndRun) for action in stopped.history)


def test_nothing_to_go_back_to() -> None:
    held = script()
    tell(held, 0, replace(ILL, trust=Trust(None, None, 50)))
    assert held.look.verdicts[-1].done == "nothing: no saved state is known to be healthy"
    held = Script(ranks=3, steps=100).boot()
    held.state = changed(held.state, settings=replace(script().state.settings))
    tell(held, 0, ILL)
    assert held.look.verdicts[-1].done == "nothing: no saved state is known to be healthy"


def test_what_is_told_while_a_loss_is_recovered_from_is_answered_after_it() -> None:
    held = script()
    held.end(2)
    tell(held, 0, ILL)
    assert held.look.verdicts == ()
    for rank in range(2):
        held.report(rank, Position(55))
    held.join(0, 1)
    held.resume(0, 1, step=55)
    tell(held, 0, ILL)
    assert len(held.look.verdicts) == len(held.state.changes) == 1


def test_what_cannot_be_looked_at_is_said_once_whoever_says_it() -> None:
    held = script()
    for _ in range(3):
        tell(held, 0, replace(HEALTHY, problem="LinAlgError: no"))
        tell(held, 1, HEALTHY)
    assert held.look.warnings == ("the stability monitors miss what they cannot look at: LinAlgError: no",)
    assert len(held.records("stability monitors")) == len(held.records("warning")) == 1


def test_a_later_controller_knows_it_and_does_what_was_decided() -> None:
    before, held = script(), ill()
    lines = [
        json.loads(json.dumps({"what": record.what, **record.facts}, default=str))
        for record in note(before.state, changed(held.state, rollback=None))
    ]
    past = fold([{"time": 0.0, **line} for line in lines])
    assert (past.changes, past.alarmed) == (held.state.changes, (0, 49))
    later = script()
    later.state = inherited(later.state, past)
    # Nobody has gone back, and nobody is on the way.
    tell(later, 2, ILL)
    assert len(later.records("going back")) == 1
    assert later.look.verdicts == ()
    back(later)
    assert later.state.opened is not None
    assert later.state.opened.restore is not None
    assert later.state.opened.restore.changes == held.state.changes
    assert len(later.records("going back")) == 1


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from([HEALTHY, ILL])), min_size=1, max_size=8))
def test_whoever_tells_it_and_however_often(order: list[tuple[int, StabilityTold]]) -> None:
    held = script()
    for rank, told in order:
        tell(held, rank, told)
    alarmed = any(told is ILL for _, told in order)
    assert len(held.look.verdicts) == len(held.state.changes) == alarmed
    assert len(held.records("stability monitors")) == 1
    assert asdict(held.state.changes[0])["step"] == 20 if alarmed else True

"""What the stability monitors say, as ranks tell it with their heartbeats, and what follows from an alarm.

All ranks come to the same judgement, so one that is heard speaks for all. They tell it again and again, so nothing is
lost when a controller dies: what was done about it is noted, and what was decided and not done is done then.
"""

from ...actors.stability_messages import StabilityTold
from ...conf.remedy import OnInstability
from ...monitors.certification import Trust
from ...monitors.diagnosis import diagnose
from ...monitors.envelope import Alarm
from ...policies.changes import following
from ...policies.instability import react
from ...policies.values import changed
from ...policies.world import Generation
from . import rollback, trust, verdicts
from .events import Action, Record
from .findings import noted
from .state import State
from .trust import STABILITY
from .watch import Stability

# Another ledger, of what is held because of an alarm.
HELD = "stability, held"
Step = tuple[State, list[Action]]


def heard(state: State, told: StabilityTold, generation: Generation, now: float) -> Step:
    """A member in the newest generation has told something."""
    newest = following(state.changes) - 1
    if told.changes < newest:
        # It has not gone back yet; if nobody is on the way, whoever decided it has died before it was said.
        return _again(state, told.changes, now) if state.recovery is None else (state, [])
    known, latest = state.stability, Stability(told, generation)
    if known is not None and known.age > latest.age:
        return state, []
    actions: list[Action] = []
    if known is None or known.told.watched != told.watched:
        actions.append(Record("stability monitors", generation, {"watch": told.watched}))
    problem = f"the stability monitors miss what they cannot look at: {told.problem}"
    if told.problem and problem not in state.warnings:
        state = changed(state, warnings=(*state.warnings, problem))
        actions.append(Record("warning", facts={"text": problem}))
    if known != latest:
        state = changed(state, stability=latest)
    keeps = state.settings.on_instability in (OnInstability.HOLD, OnInstability.ROLLBACK)
    if keeps and trust.trust_of(state, STABILITY) != told.trust:
        state = trust.trusted(state, STABILITY, told.trust)
    new = [alarm for alarm in told.alarms if (told.changes, alarm.step) > state.alarmed]
    if not new or state.recovery is not None:
        # Whoever goes back now may undo what it is about; if not, it is told again.
        return state, actions
    state, more = _alarmed(state, told, new, now)
    return state, [*actions, *more]


def line(state: State) -> str:
    """For people; empty if nothing was told."""
    if state.stability is None:
        return ""
    told = state.stability.told
    alarms = f"{len(told.alarms)} alarms, the first: {told.alarms[0].sentence}" if told.alarms else "no alarm"
    different = [f"different {change}" for change in state.changes]
    return "; ".join([f"watches {told.watched}", alarms, *different])


def _alarmed(state: State, told: StabilityTold, new: list[Alarm], now: float) -> Step:
    first = min(new, key=lambda alarm: (alarm.since, alarm.step))
    settings, kept = state.settings, trust.trust_of(state, STABILITY).verified
    healthy = None if kept is None else trust.source_of(state, kept).step or None
    reaction = react(settings.on_instability, settings.remedy, first.sentence, healthy, told.changes, state.changes)
    state = changed(state, alarmed=(told.changes, max(alarm.step for alarm in new)))
    evidence = {
        "alarms": [alarm.sentence for alarm in new],
        "fits": sorted(diagnose(told.alarms)),
        "layer": first.layer,
        "head": first.head,
        "number": first.number,
        "value": first.value,
        "healthy": [first.healthy.low, first.healthy.high],
        "since": first.since,
    }
    state, actions = noted(
        state, now, STABILITY, "alarm", first.sentence, step=first.step + 1, evidence=evidence, done=reaction.reason
    )
    if reaction.hold is not None:
        state = trust.trusted(state, HELD, Trust(verified=reaction.hold, checked=reaction.hold))
    if reaction.stop:
        state, more = verdicts.fail(state, reaction.reason)
        return state, [*actions, *more]
    if reaction.change is None:
        return state, actions
    state = changed(state, changes=(*state.changes, reaction.change))
    state, more = _go_back(state, reaction.change.step, first.sentence, now)
    return state, [*actions, *more]


def _again(state: State, known: int, now: float) -> Step:
    """Have everybody go back, as was decided."""
    missing = [change for change in state.changes if change.number > known]
    first = min(missing, key=lambda change: change.step)
    return _go_back(state, first.step, first.reason, now)


def _go_back(state: State, to: int, alarm: str, now: float) -> Step:
    cause = f"the training is unstable: {alarm}"
    return rollback.go_back(state, now, STABILITY, cause, cause, to)

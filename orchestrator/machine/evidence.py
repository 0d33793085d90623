"""What ranks have computed is gathered and compared: whoever differs from most of its peers computes wrong.

A check is that of the state of one step. Its evidence comes with control messages, off the path of the steps; it is all
there, or will never be, when every member has taken the step after the one that follows. What differs is acted on at
once. A check of which all has come and nobody differs is clean, and so vouches for that state.
"""

from collections.abc import Collection, Mapping
from typing import Any

from immutables import Map

from ...actors.evidence import Evidence
from ...monitors.certification import certified
from ...monitors.consensus import Agree, Attributed, Inconclusive, Verdict, can_attribute
from ...monitors.replicas import state_verdict
from ...policies.values import changed
from . import rollback, trust
from .distrust import Gathered, OpenCheck
from .events import Action, Record
from .findings import noted
from .state import Rank, State, without
from .trust import CORRUPTION, trust_of, trusted
from .verdicts import fence

Step = tuple[State, list[Action]]
# Whoever has decided the step after the one that follows a check has said all that it will say of it.
_LATER = 2
_SIGNATURES_SHOWN = 3
_RANKS_SHOWN = 8


def heard(state: State, incarnation: str, message: Evidence, now: float) -> Step:
    """Evidence of a member has come."""
    rank = state.ranks[incarnation]
    known = trust_of(state, CORRUPTION).checked
    if not _concerns(state, rank, message) or (known is not None and message.step <= known):
        facts = {"rank": rank.title, "check": message.check, "step": message.step}
        return state, [Record("late evidence refused", message.generation, facts)]
    assert rank.seat is not None
    state, actions = _passed(state, incarnation, message.step, now)
    check = state.checks.get(message.step)
    if check is None:
        if (known := trust_of(state, CORRUPTION).checked) is not None and message.step <= known:
            return state, actions
        state, warned = _detect_only(state, message.step)
        actions += warned
        check = OpenCheck(state.present)
    key = (message.check, rank.seat.coordinate)
    group = check.groups.get(key) or Gathered(_among(state, message))
    if group.agreed:
        # It comes a second time.
        return state, actions
    group = changed(group, brought=_with(group.brought, rank.seat.replica, message.signatures))
    verdict: Verdict | None = None
    if group.complete:
        verdict = state_verdict(dict(group.brought))
        # A thousand signatures of each of a thousand ranks are not kept.
        group = changed(group, brought=Map(), agreed=True) if isinstance(verdict, Agree) else group
    check = changed(check, groups=check.groups.set(key, group), uncovered=check.uncovered.union(message.uncovered))
    state = changed(state, checks=state.checks.set(message.step, check))
    if verdict is None or isinstance(verdict, Agree):
        return state, actions
    state, more = _judged(state, message, rank.seat.coordinate, verdict, now)
    return state, [*actions, *more]


def passed(state: State, incarnation: str, step: int, now: float) -> Step:
    """A member has taken ``step`` steps: of what came long before it will say nothing more."""
    return _passed(state, incarnation, step, now) if state.checks else (state, [])


def settled(state: State) -> State:
    """The generation is over: what has not come of open checks never will."""
    for step in sorted(state.checks):
        verdict = Inconclusive("the group changed before all of the evidence had come", {})
        state = _concluded(state, step, verdict)
    return state


def _concerns(state: State, rank: Rank, message: Evidence) -> bool:
    """Whether the evidence is of the world that there is."""
    return (
        state.world is not None
        and state.is_member(rank.incarnation)
        and rank.seat is not None
        and message.generation == state.world.generation
        and (not message.among or rank.seat.replica in message.among)
    )


def _among(state: State, message: Evidence) -> frozenset[int]:
    assert state.world is not None
    return frozenset(message.among or state.world.replicas)


def _with(
    brought: Map[int, Mapping[str, int]], replica: int, signatures: Mapping[str, int]
) -> Map[int, Mapping[str, int]]:
    """With one more; healthy ranks all bring the same, which is kept once."""
    first = next(iter(brought.values()), signatures)
    return brought.set(replica, first if first == signatures else signatures)


def _passed(state: State, incarnation: str, step: int, now: float) -> Step:
    actions: list[Action] = []
    for place, check in sorted(state.checks.items()):
        if step < place + _LATER:
            break
        check = changed(check, behind=without(check.behind, incarnation))
        state = changed(state, checks=state.checks.set(place, check))
        if not check.behind:
            state, more = _complete(state, place, check, now)
            actions += more
    return state, actions


def _complete(state: State, step: int, check: OpenCheck, now: float) -> Step:
    """Nothing more will come."""
    missing = [
        f"{kind} of {_named(group.missing, coordinate)}"
        for (kind, coordinate), group in sorted(check.groups.items())
        if not group.agreed
    ]
    if not missing:
        return _concluded(state, step, Agree({})), []
    reason = f"there is no evidence of {'; '.join(missing)}"
    state = _concluded(state, step, Inconclusive(reason, {}))
    return noted(state, now, CORRUPTION, "inconclusive", reason, step=step, done="step is not verified")


def _concluded(state: State, step: int, verdict: Verdict) -> State:
    """A check is over, and with it those before it."""
    uncovered = state.checks[step].uncovered if step in state.checks else frozenset()
    left = {place: check for place, check in state.checks.items() if place > step}
    state = changed(state, checks=Map(left), uncovered=tuple(sorted(uncovered)))
    return trusted(state, CORRUPTION, certified(trust_of(state, CORRUPTION), step, [verdict]))


def _judged(state: State, message: Evidence, coordinate: int, verdict: Attributed | Inconclusive, now: float) -> Step:
    """Somebody differs."""
    to = trust.newest_trusted(state, CORRUPTION)
    step, reason = message.step, f"{message.check} of step {message.step}: {verdict.reason}"
    state = _concluded(state, step, verdict)
    evidence = _shown(state, coordinate, verdict)
    if not isinstance(verdict, Attributed):
        done = "nothing: nobody can be named, and the step is not verified"
        return noted(state, now, CORRUPTION, "inconclusive", reason, step=step, evidence=evidence, done=done)
    culprits = _members(state, verdict.ranks, coordinate)
    if not state.settings.rolls_back:
        done = "nothing, as elastic.on_corruption says"
    else:
        where = f"what is known to be right, up to step {to}" if to else "the start: nothing since is known to be right"
        done = f"it is shut out, and everybody goes back to {where}"
    state, actions = noted(
        state, now, CORRUPTION, "attributed", reason, step=step, who=culprits, evidence=evidence, done=done
    )
    if not state.settings.rolls_back:
        return state, actions
    # It may have died since it said so.
    titles = ", ".join(state.ranks[name].title for name in culprits) or _named(verdict.ranks, coordinate)
    for name in culprits:
        state, more = fence(state, name, f"it computes wrong, {reason}", now)
        actions += more
    state, more = rollback.go_back(
        state, now, CORRUPTION, f"{titles} computed wrong", f"{titles}: it computes wrong, {reason}", to
    )
    return state, [*actions, *more]


def _detect_only(state: State, step: int) -> Step:
    """Said once: so few can only detect. At the end, where the last state is compared in any case, it is no news."""
    assert state.world is not None
    text = can_attribute(len(state.world.replicas))
    every = state.settings.cadences.get(CORRUPTION, 0)
    if text is None or text in state.warnings or (every and step % every):
        return state, []
    return changed(state, warnings=(*state.warnings, text)), [Record("warning", facts={"text": text})]


def _members(state: State, replicas: tuple[int, ...], coordinate: int) -> list[str]:
    """Living members of these replicas, by incarnation."""
    found = {
        rank.seat.replica: rank.incarnation
        for rank in state.members
        if rank.seat and rank.seat.coordinate == coordinate
    }
    return [found[replica] for replica in replicas if replica in found]


def _named(replicas: Collection[int], coordinate: int) -> str:
    shown = ", ".join(f"{replica}.{coordinate}" for replica in sorted(replicas)[:_RANKS_SHOWN])
    return f"rank {shown}" if len(replicas) == 1 else f"ranks {shown}"


def _shown(state: State, coordinate: int, verdict: Verdict) -> Mapping[str, Any]:
    """Evidence for people: a few signatures that differ, of those who are named and of some of the others."""
    named = verdict.ranks if isinstance(verdict, Attributed) else ()
    others = [replica for replica in sorted(verdict.evidence) if replica not in named]
    shown = sorted([*named[:_RANKS_SHOWN], *others[: max(2, _RANKS_SHOWN - len(named))]])
    return {
        f"rank {replica}.{coordinate}": {
            what: None if value is None else f"{value & (2**64 - 1):016x}"
            for what, value in sorted(verdict.evidence[replica].items())[:_SIGNATURES_SHOWN]
        }
        for replica in shown
    }

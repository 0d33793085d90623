"""From a loss to the next generation: prepare, collect reports, decide, open, and watch it come up.

Ranks that join or leave change the world in the same way, without a loss. Single-flight and re-entrant: there is one
change; a new loss before the new generation is open only shortens the list of reports to wait for, a loss after that
begins again at ``prepare`` under the next number.
"""

from ...actors.messages import Joined, Prepare, Report, Resumed
from ...policies.values import changed
from ...policies.workload import Contradiction
from ...policies.world import Generation, World
from ..view import Phase, RecoveryRecord
from .answer import Answer, answer, scene
from .asking import ask
from .events import Action, Record, Send
from .opening import hold, open_next
from .reporting import alike, reported
from .state import Recovery, State, without
from .trust import pending
from .verdicts import begun, fail, fence, succeed, unconfirmed

DEATHLESS_LIMIT = 3


def begin(
    state: State, cause: str, now: float, started: float | None = None, *, planned: bool = False
) -> tuple[State, list[Action]]:
    """A loss was noticed, or ranks join or leave: ask every member to abandon the old generation and to report."""
    old = state.recovery
    if old is not None and not old.opened:
        if old.planned and not planned:
            old = changed(old, planned=False, cause=cause, started=now)
            state = changed(state, phase=Phase.RECOVERING, recovery=old, first_cause=state.first_cause or cause)
        return plan(state, now)
    world = state.world
    assert world is not None, "nothing can be lost before the first generation"
    if state.rollback is not None:
        # Not all have gone back: whoever has not must not take up what the others left.
        state = changed(state, rollback=changed(state.rollback, opened=None))
    number = state.number + 1
    generation = Generation(state.settings.term, number)
    goes_on = old is not None and (planned or not old.planned)
    recovery = Recovery(
        generation=generation,
        planned=planned and (old is None or old.planned),
        before=old.before if old else len(world.members),
        cause=old.cause if old and goes_on else cause,
        started=old.started if old and goes_on else (now if started is None else started),
        prepared=now,
        silent=state.present,
        lost=old.lost if old else (),
        lost_microbatches=old.lost_microbatches if old else (),
    )
    phase = state.phase if planned and old is None else Phase.RECOVERING
    first = state.first_cause if planned else state.first_cause or cause
    state = changed(state, phase=phase, number=number, recovery=recovery, first_cause=first)
    prepare = Prepare(generation)
    actions: list[Action] = [Send(member, prepare) for member in sorted(state.present)]
    facts = {"cause": cause, "before": recovery.before}
    return state, [Record("changing" if planned else "recovering", generation, facts), *actions]


def explain(state: State, cause: str) -> State:
    """A death explains the failed collectives that were heard of before it."""
    recovery = state.recovery
    if recovery is None or recovery.opened or not recovery.guessed:
        return state
    first = cause if state.first_cause == recovery.cause else state.first_cause
    return changed(state, recovery=changed(recovery, cause=cause, guessed=False), first_cause=first)


def report(state: State, incarnation: str, message: Report, now: float) -> tuple[State, list[Action]]:
    """A member promises to decide nothing in the current generation, and says what it has."""
    if not _binding(state, incarnation, message):
        record = Record("stale report refused", message.abandons, {"rank": state.ranks[incarnation].title})
        return changed(state, ranks=state.heard(incarnation, now)), [record]
    assert state.world is not None
    if message.abandons != state.world.generation:
        message = _as_if_told(state, incarnation, message, state.world.generation)
    actions: list[Action] = []
    if state.recovery is None or state.recovery.opened:
        cause = f"{state.ranks[incarnation].title}: {message.cause or 'left the group'}"
        state, actions = begin(state, cause, now)
        assert state.recovery is not None
        state = changed(state, recovery=changed(state.recovery, guessed=len(state.recovery.lost) == 0))
    recovery = state.recovery
    assert recovery is not None
    known = state.ranks[incarnation].report
    ranks = state.heard(incarnation, now, report=message, position=message.position)
    recovery = changed(recovery, silent=without(recovery.silent, incarnation))
    state = changed(state, ranks=ranks, recovery=recovery)
    if message.accused is not None and message != known:
        count = state.accusations.get(message.accused, 0) + 1
        state = changed(state, accusations={**state.accusations, message.accused: count})
    if recovery.silent:
        return state, actions
    state, more = plan(state, now)
    return state, [*actions, *more]


def plan(state: State, now: float) -> tuple[State, list[Action]]:
    """Open the next generation as soon as every living member has reported and every fenced one is gone."""
    recovery = state.recovery
    if recovery is None or recovery.opened or recovery.silent or unconfirmed(state, now):
        return state, []
    old = state.world
    assert old is not None
    reports = reported(state, old)
    groups = alike(reports)
    for said in groups:
        state, ending = begun(state, said.names[0], said.position, said.work)
        if ending:
            return state, ending
    found = scene(state, old, reports, groups)
    if found.lost == 0 and not recovery.planned and not recovery.waiting and not pending(state):
        state, actions, again = _deathless(state, now)
        if state.phase.ended or again:
            state, more = plan(state, now)
            return state, [*actions, *more]
    chosen = answer(state, found, now)
    if found.lost or recovery.waiting or chosen.roster is None:
        state = changed(state, decision=chosen.reason)
    if chosen.roster is not None:
        try:
            state, actions = open_next(state, chosen, found, now)
        except Contradiction as error:
            return fail(state, f"step {found.position}: {error}, {_reporters(old, error)} report")
        # Whoever was let go may have been all that the others waited for.
        state, ending = succeed(state)
        return state, [*actions, *ending]
    if chosen.fresh:
        return _wait(state, chosen, now)
    return fail(state, f"{chosen.reason}; first cause: {state.first_cause}")


def _reporters(world: World, error: Contradiction) -> str:
    """The ranks that contradict each other, for people."""
    seats = [str(member.seat) for replica in error.replicas for member in world.groups.get(replica, ())]
    return f"as ranks {', '.join(seats[:8])}" + (f" and {len(seats) - 8} more" if len(seats) > 8 else "")


def joined(state: State, incarnation: str, message: Joined, now: float) -> tuple[State, list[Action]]:
    """A member has built the group of the new generation."""
    recovery = state.recovery
    if recovery is None or message.generation != recovery.generation:
        return state, []
    recovery = changed(recovery, unbuilt=without(recovery.unbuilt, incarnation))
    if not recovery.unbuilt and "rebuilt" not in recovery.stamps:
        recovery = changed(recovery, stamps={**recovery.stamps, "rebuilt": now})
    return changed(state, recovery=recovery), []


def resumed(state: State, incarnation: str, message: Resumed, now: float) -> tuple[State, list[Action]]:
    """A member has decided its first position in the new generation; when all have, the recovery is over."""
    recovery = state.recovery
    if recovery is None or message.generation != recovery.generation:
        return state, []
    longest = max(recovery.reducing, message.decided - message.reduced)
    recovery = changed(recovery, pending=without(recovery.pending, incarnation), reducing=longest)
    return conclude(changed(state, recovery=recovery), now)


def conclude(state: State, now: float) -> tuple[State, list[Action]]:
    """Close the change once every living member has either decided in the new generation or finished."""
    recovery = state.recovery
    if recovery is None or not recovery.opened or recovery.pending:
        return state, []
    world_after = len(state.present)
    state = changed(state, phase=Phase.RUNNING, recovery=None, rollback=None, deathless=0, accusations={})
    if recovery.planned:
        facts = {"cause": recovery.cause, "before": recovery.before, "after": world_after}
        return state, [Record("changed", recovery.generation, facts)]
    record = RecoveryRecord(
        generation=str(recovery.generation),
        cause=recovery.cause,
        step=recovery.step,
        world_before=recovery.before,
        world_after=world_after,
        lost=tuple(str(seat) for seat in recovery.lost),
        lost_microbatches=recovery.lost_microbatches,
        decision=recovery.reason,
        phases=_phases(recovery, now),
    )
    state = changed(state, recoveries=(*state.recoveries, record))
    return state, [Record("recovered", recovery.generation, {"phases": dict(record.phases)})]


def overdue(state: State, now: float) -> list[str]:
    """Members that have not reported in time."""
    recovery = state.recovery
    if recovery is None or recovery.opened or now - recovery.prepared <= state.settings.timeouts.heartbeat:
        return []
    return sorted(recovery.silent)


def _binding(state: State, incarnation: str, message: Report) -> bool:
    """Whether a report is a promise that holds for everything before the next generation."""
    if state.world is None or not state.is_member(incarnation):
        return False
    if message.abandons == state.world.generation:
        return True
    # Whoever never heard of the newest world has promised to hear of nothing older than what is prepared now.
    recovery = state.recovery
    if recovery is None or recovery.opened or message.promised is None:
        return False
    return message.promised >= recovery.generation


def _as_if_told(state: State, incarnation: str, message: Report, newest: Generation) -> Report:
    """What a member has to give that never heard of the newest generation, which it has given up all the same."""
    message = changed(message, abandons=newest)
    nothing = changed(message, done=frozenset(), owed=frozenset(), repeats=None)
    if incarnation in state.anew:
        # It was to forget what it has: others were given that, or it belongs to steps that were undone.
        return changed(nothing, work=None, lacks=True)
    # A shadow may have taken somebody's place since, or been let go.
    return message if message.repeats is None else nothing


def _wait(state: State, chosen: Answer, now: float) -> tuple[State, list[Action]]:
    """Nobody can train; say so to those who wait, and ask for the ranks that are missing."""
    recovery = state.recovery
    assert recovery is not None
    first = not recovery.waiting
    recovery = changed(recovery, waiting=recovery.waiting or now, deadline=now + chosen.deadline, reason=chosen.reason)
    state = changed(state, phase=Phase.WAITING, recovery=recovery)
    state, actions = ask(state, now)
    if first:
        told: list[Action] = [hold(state, name, chosen.deadline, chosen.reason) for name in sorted(state.present)]
        actions = [Record("waiting", recovery.generation, {"reason": chosen.reason}), *told, *actions]
    return state, actions


def _deathless(state: State, now: float) -> tuple[State, list[Action], bool]:
    """An error without a death re-forms the same members; the third time the most accused is shut out."""
    state = changed(state, deathless=state.deathless + 1)
    if state.deathless < DEATHLESS_LIMIT:
        return state, [], False
    accused = {name: count for name, count in state.accusations.items() if name in state.present}
    if not accused:
        error = f"collectives failed {state.deathless} times in a row and nobody can be blamed; {state.first_cause}"
        return (*fail(state, error), False)
    culprit = max(accused, key=lambda name: (accused[name], name))
    times = f"{accused[culprit]} times by its peers in {state.deathless} failed collectives"
    reason = f"accused {times} in a row without a death"
    state, actions = fence(state, culprit, reason, now)
    return changed(state, deathless=0, accusations={}), actions, True


def _phases(recovery: Recovery, now: float) -> dict[str, float]:
    """Seconds by phase; they follow each other and add up to ``total``."""
    stamps = recovery.stamps
    opened = recovery.opened
    rebuilt = min(stamps.get("rebuilt", now), now)
    reduce = min(recovery.reducing, now - rebuilt)
    reported = stamps.get("reported", opened)
    return {
        "notice and report": reported - recovery.started,
        "plan": opened - reported,
        "rebuild": rebuilt - opened,
        "recompute": now - rebuilt - reduce,
        "reduce and vote": reduce,
        "total": now - recovery.started,
    }

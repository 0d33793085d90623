"""How a run ends, and what one rank's exception, silence or last word means for it."""

from ...actors.messages import Fenced, Finished, Raised, Release
from ...monitors.agreement import first_difference
from ...monitors.heartbeat import silent
from ...policies.values import changed
from ...policies.world import Position, Work
from ..view import Phase
from .asking import failed
from .events import Action, EndRun, KillRank, Record, Send
from .state import Rank, Standing, State, without
from .trust import pending

# The same error so often at the same position is no coincidence: more ranks would be lost to it, down to the last.
DETERMINISTIC_LIMIT = 3
_LOADING_FACTOR = 6
# Ranks stand at most one step apart.
_POSITIONS_KEPT = 4


def fail(state: State, error: str) -> tuple[State, list[Action]]:
    """End without success. The first exception of the user's code is the cause, if there was one."""
    first = state.raised[0] if state.raised else None
    state = changed(
        state,
        phase=Phase.FAILED,
        recovery=None,
        error=error,
        traceback=first.traceback if first else None,
        first_cause=state.first_cause or error,
    )
    actions: list[Action] = [KillRank(rank.incarnation, error) for rank in state.living]
    return state, [*actions, Record("failed", facts={"error": error}), EndRun()]


def raised(state: State, incarnation: str, message: Raised) -> tuple[State, list[Action]]:
    """One rank's exception is first taken for that rank's fault; a second rank's makes it the work's fault."""
    rank = state.ranks[incarnation]
    if rank.raised is not None or any(old.incarnation == incarnation for old in state.raised):
        return state.rank(incarnation, raised=message, cause=message.error), []
    if rank.seat is None and state.world is not None:
        return _not_come_in(state, rank, message)
    earlier = state.raised
    seat = rank.title
    state = changed(
        state.rank(incarnation, raised=message, cause=message.error),
        raised=(*earlier, message),
        first_cause=state.first_cause or f"{seat}: {message.error}",
    )
    record = Record("raised", facts={"rank": rank.title, "error": message.error})
    # Where poison is skipped, several microbatches of a step may fail at the same line.
    lone = state.settings.skip_poison and message.microbatch is not None
    if message.final:
        error = f"{seat}: {message.error}"
    elif twin := next((old for old in earlier if _same_microbatch(old, message)), None):
        if state.settings.skip_poison:
            return _poisoned(state, message, twin, record)
        error = (
            f"microbatch {message.microbatch} of step {message.position.step} is poison, it failed on two ranks "
            f"(samples {_some(message.samples)}): {twin.error}"
        )
    elif not lone and (alike := next((old for old in earlier if _alike(old, message)), None)):
        error = f"the training function fails alike on several ranks: {alike.error}"
    elif len(same := _repeated(state, message)) >= DETERMINISTIC_LIMIT:
        places = ", ".join(str(old.microbatch) for old in same if old.microbatch is not None)
        error = (
            f"the error is deterministic, {len(same)} ranks met it at step {message.position.first} "
            f"(microbatches {places}): {same[0].error}"
        )
    else:
        return state, [record]
    state, actions = fail(state, error)
    return state, [record, *actions]


def _not_come_in(state: State, rank: Rank, message: Raised) -> tuple[State, list[Action]]:
    """A start that failed says something of its node, and nothing of those who train."""
    state = state.rank(rank.incarnation, raised=message, cause=message.error)
    text = f"ranks that are started beside those that train fail: {message.error}"
    if text not in state.warnings:
        state = changed(state, warnings=(*state.warnings, text))
    return state, [Record("raised", facts={"rank": rank.title, "error": message.error})]


def _poisoned(state: State, message: Raised, twin: Raised, record: Record) -> tuple[State, list[Action]]:
    """The microbatch is left out of its step: two ranks were lost to it, a third one would be too."""
    assert message.microbatch is not None
    step = message.position.step
    held = state.poison.get(step, frozenset())
    if message.microbatch in held:
        return state, [record]
    poison = {**state.poison, step: held | {message.microbatch}}
    text = (
        f"microbatch {message.microbatch} of step {step} is poison and is skipped "
        f"(samples {_some(message.samples)}): {twin.error}"
    )
    state = changed(state, poison=poison, warnings=(*state.warnings, text))
    return state, [record, Record("poison", facts={"text": text, "samples": list(message.samples)})]


def finished(state: State, incarnation: str, message: Finished) -> tuple[State, list[Action]]:
    """A rank has applied all steps; when all have, their weights must be the same."""
    state = state.rank(incarnation, finished=message, standing=Standing.FINISHED)
    recovery = state.recovery
    if recovery is not None:
        recovery = changed(recovery, pending=without(recovery.pending, incarnation))
    return succeed(changed(state, unfinished=without(state.unfinished, incarnation), recovery=recovery))


def succeed(state: State) -> tuple[State, list[Action]]:
    """End with success once every living member has finished and a whole replica is left; nothing changes before."""
    if state.unfinished or state.world is None or pending(state):
        return state, []
    members = state.members
    if not members or any(rank.finished is None for rank in members):
        return state, []
    groups = state.world.groups.values()
    if not any(all(member.incarnation in state.present for member in group) for group in groups):
        # A part of the last state is gone with the lost ranks.
        return state, []
    ends = {str(rank.seat): rank.finished for rank in members if rank.finished is not None}
    digests = {seat: {"weights": end.weights_sha256, "state": end.state_sha256} for seat, end in ends.items()}
    difference = first_difference(digests)
    if difference is not None:
        who = ", ".join(difference.minority) or "nobody can be named"
        return fail(state, f"ranks ended with different {difference.key} (differing: {who}): {dict(difference.values)}")
    state = changed(state, phase=Phase.SUCCEEDED, recovery=None)
    actions: list[Action] = [Send(rank.incarnation, Release()) for rank in state.living]
    return state, [*actions, Record("succeeded", facts={"weights": str(digests)}), EndRun()]


def begun(state: State, incarnation: str, position: Position, work: Work | None) -> tuple[State, list[Action]]:
    """A rank works at a position; whoever does something else there ends the run, since they would wait for ever."""
    if work is None:
        return state, []
    first, other = state.begun.get(position, (incarnation, work))
    if other != work:
        titles = state.ranks[first].title, state.ranks[incarnation].title
        (one, theirs), (two, mine) = sorted(zip(titles, (other, work), strict=True), key=lambda pair: pair[0])
        return fail(
            state, f"at step {position} {one} does {theirs}, {two} {mine}: every rank must call run.evaluate alike"
        )
    if position in state.begun:
        return state, []
    newest = sorted({*state.begun, position})[-_POSITIONS_KEPT:]
    held = {**state.begun, position: (incarnation, work)}
    return changed(state, begun={place: held[place] for place in newest}), []


def suspect(state: State, now: float) -> tuple[State, list[Action]]:
    """Silent ranks become suspects; the next ping of the lease is their probe."""
    actions: list[Action] = []
    patience = state.settings.timeouts.heartbeat
    watched = [rank for rank in state.living if rank.pid and rank.standing is not Standing.SUSPECT]
    # A process that loads its libraries may keep all of its threads waiting.
    loading = {rank.incarnation: rank.last_heard for rank in watched if rank.standing is Standing.STARTING}
    others = {rank.incarnation: rank.last_heard for rank in watched if rank.standing is not Standing.STARTING}
    for silence in (*silent(loading, now, _LOADING_FACTOR * patience), *silent(others, now, patience)):
        state = state.rank(silence.incarnation, standing=Standing.SUSPECT, suspected=now)
        actions.append(Record("suspected", facts={"rank": silence.incarnation, "silent_s": silence.seconds}))
    return state, actions


def fence(state: State, incarnation: str, reason: str, now: float) -> tuple[State, list[Action]]:
    """Shut a rank out before it is killed: whatever it still says is refused from here on."""
    said = f"{state.ranks[incarnation].title}: {reason}"
    state = failed(state, state.ranks[incarnation], reason, now)
    state = state.lost(incarnation, standing=Standing.FENCED, fenced=now, cause=reason)
    state = changed(state, first_cause=state.first_cause or said)
    return state, [
        Send(incarnation, Fenced(reason)),
        KillRank(incarnation, reason),
        Record("fenced", facts={**state.ranks[incarnation].facts, "reason": reason}),
    ]


def unconfirmed(state: State, now: float) -> tuple[Rank, ...]:
    """Fenced ranks whose end is still worth waiting for."""
    patience = state.settings.timeouts.confirm
    fenced = (state.ranks[name] for name in sorted(state.fenced))
    return tuple(rank for rank in fenced if now - rank.fenced < patience)


def _alike(old: Raised, new: Raised) -> bool:
    """The same exception at the same place in the same step; far apart they are two faults of two ranks."""
    return old.signature == new.signature and old.position.step == new.position.step


def _repeated(state: State, new: Raised) -> list[Raised]:
    """All exceptions alike at the position of ``new`` that are not the fault of a poison microbatch, oldest first."""
    place = new.position.first
    poison = state.poison.get(place.step, frozenset())
    alike = [old for old in state.raised if old.position.first == place and old.signature == new.signature]
    return [old for old in alike if old.microbatch not in poison]


def _same_microbatch(old: Raised, new: Raised) -> bool:
    """It is named within its step: after a restore it may be at another position."""
    place = (new.position.step, new.microbatch)
    return new.microbatch is not None and (old.position.step, old.microbatch) == place


def _some(samples: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, samples[:8]))
    return shown + (", ..." if len(samples) > 8 else "")

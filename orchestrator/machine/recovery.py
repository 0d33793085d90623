"""From a loss to the next generation: prepare, collect reports, decide, open, and watch it come up.

Single-flight and re-entrant: there is one recovery; a new loss before the new generation is open only shortens the
list of reports to wait for, a loss after that begins again at ``prepare`` under the next number.
"""

from dataclasses import replace

from ...actors.messages import Joined, Open, Prepare, Report, Resumed, StoreAddress
from ...policies.recovery import decide
from ...policies.remedies import LossFacts, Remedy
from ...policies.world import Generation, Member, World
from ..view import Phase, RecoveryRecord
from .events import Action, Record, Send
from .sharing import share
from .state import Rank, Recovery, State
from .verdicts import begun, fail, fence, unconfirmed

DEATHLESS_LIMIT = 3


def begin(state: State, cause: str, now: float, started: float | None = None) -> tuple[State, list[Action]]:
    """A loss was noticed: ask every living member to abandon the old generation and to report."""
    old = state.recovery
    if old is not None and not old.opened:
        return plan(state, now)
    number = state.number + 1
    generation = Generation(state.settings.term, number)
    assert state.world is not None, "nothing can be lost before the first generation"
    recovery = Recovery(
        generation=generation,
        before=old.before if old else state.world.incarnations,
        cause=old.cause if old else cause,
        started=old.started if old else (now if started is None else started),
        lost=old.lost if old else (),
        lost_microbatches=old.lost_microbatches if old else (),
        stamps={"prepared": now},
    )
    state = replace(
        state,
        phase=Phase.RECOVERING,
        number=number,
        recovery=recovery,
        first_cause=state.first_cause or cause,
    )
    actions: list[Action] = [Send(rank.incarnation, Prepare(generation)) for rank in state.members]
    return state, [Record("recovering", generation, {"cause": cause}), *actions]


def explain(state: State, cause: str) -> State:
    """A death explains the failed collectives that were heard of before it."""
    recovery = state.recovery
    if recovery is None or recovery.opened or not recovery.guessed:
        return state
    first = cause if state.first_cause == recovery.cause else state.first_cause
    return replace(state, recovery=replace(recovery, cause=cause, guessed=False), first_cause=first)


def report(state: State, incarnation: str, message: Report, now: float) -> tuple[State, list[Action]]:
    """A member promises to decide nothing in the current generation, and says what it has."""
    rank = state.ranks[incarnation]
    if state.world is None or message.abandons != state.world.generation or rank not in state.members:
        return state, [Record("stale report refused", message.abandons, {"rank": str(rank.seat)})]
    actions: list[Action] = []
    if state.recovery is None or state.recovery.opened:
        state, actions = begin(state, f"rank {rank.seat}: {message.cause or 'left the group'}", now)
        assert state.recovery is not None
        state = replace(state, recovery=replace(state.recovery, guessed=len(state.recovery.lost) == 0))
    assert state.recovery is not None
    known = state.recovery.reports.get(incarnation)
    reports = {**state.recovery.reports, incarnation: message}
    state = state.rank(incarnation, position=message.position)
    assert state.recovery is not None
    state = replace(state, recovery=replace(state.recovery, reports=reports))
    if message.accused is not None and message != known:
        count = state.accusations.get(message.accused, 0) + 1
        state = replace(state, accusations={**state.accusations, message.accused: count})
    state, more = plan(state, now)
    return state, [*actions, *more]


def plan(state: State, now: float) -> tuple[State, list[Action]]:
    """Open the next generation as soon as every living member has reported and every fenced one is gone."""
    recovery = state.recovery
    if recovery is None or recovery.opened:
        return state, []
    silent = [rank for rank in state.members if rank.incarnation not in recovery.reports]
    doomed = unconfirmed(state, now)
    if silent or doomed:
        reason = _waiting_reason(silent, doomed)
        return replace(state, recovery=replace(recovery, reason=reason)), []
    size = state.settings.ranks_per_replica
    broken = _orphans(state)
    if broken:
        actions: list[Action] = []
        for orphan in broken:
            state, more = fence(state, orphan.incarnation, f"replica {orphan.seat.replica} lost a rank", now)
            actions += more
        return state, actions
    survivors = state.members
    decision = decide(LossFacts(len(recovery.before) // size, len(survivors) // size, state.settings.minimum))
    if decision.remedy is Remedy.END:
        return fail(state, f"{decision.reason}; first cause: {state.first_cause}")
    if len(survivors) == len(_old_world(state).members):
        state, actions, again = _deathless(state, now)
        if state.phase.ended or again:
            state, more = plan(state, now)
            return state, [*actions, *more]
    return _open(state, survivors, decision.reason, now)


def joined(state: State, incarnation: str, message: Joined, now: float) -> tuple[State, list[Action]]:
    """A member has built the group of the new generation."""
    recovery = state.recovery
    if recovery is None or message.generation != recovery.generation:
        return state, []
    recovery = replace(recovery, joined=recovery.joined | {incarnation})
    if all(rank.incarnation in recovery.joined for rank in state.members):
        recovery = replace(recovery, stamps={**recovery.stamps, "rebuilt": now}, reason="lost microbatches")
    return replace(state, recovery=recovery), []


def resumed(state: State, incarnation: str, message: Resumed, now: float) -> tuple[State, list[Action]]:
    """A member has decided its first position in the new generation; when all have, the recovery is over."""
    recovery = state.recovery
    if recovery is None or message.generation != recovery.generation:
        return state, []
    recovery = replace(recovery, resumed={**recovery.resumed, incarnation: message})
    return conclude(replace(state, recovery=recovery), now)


def conclude(state: State, now: float) -> tuple[State, list[Action]]:
    """Close the recovery once every living member has either decided in the new generation or finished."""
    recovery = state.recovery
    if recovery is None or not recovery.opened:
        return state, []
    pending = [rank for rank in state.members if rank.incarnation not in recovery.resumed and rank.finished is None]
    if pending:
        return state, []
    record = RecoveryRecord(
        generation=str(recovery.generation),
        cause=recovery.cause,
        step=recovery.step,
        world_before=len(recovery.before),
        world_after=len(state.members),
        lost=tuple(str(seat) for seat in recovery.lost),
        lost_microbatches=recovery.lost_microbatches,
        phases=_phases(recovery, now),
    )
    state = replace(
        state,
        phase=Phase.RUNNING,
        recovery=None,
        recoveries=(*state.recoveries, record),
        deathless=0,
        accusations={},
    )
    return state, [Record("recovered", recovery.generation, {"phases": dict(record.phases)})]


def _open(state: State, survivors: tuple[Rank, ...], why: str, now: float) -> tuple[State, list[Action]]:
    recovery = state.recovery
    assert recovery is not None
    assert state.store is not None
    old = _old_world(state)
    reports = {rank.incarnation: recovery.reports[rank.incarnation] for rank in survivors}
    position = max(held.position for held in reports.values())
    world = World(
        recovery.generation,
        tuple(member for member in old.members if member.incarnation in reports),
        old.ranks_per_replica,
    )
    recovery = replace(recovery, stamps={**recovery.stamps, "reported": recovery.stamps.get("reported", now)})
    for name, held in reports.items():
        state, ending = begun(state, name, held.position, held.work)
        if ending:
            return state, ending
    shared = share(state, world, position, reports)
    gone = tuple(member.seat for member in old.members if member.incarnation not in reports)
    lost_microbatches = tuple(sorted({*recovery.lost_microbatches, *shared.lost}))
    # Whoever is ahead has decided the position that the others are about to follow.
    ahead = {
        name: Resumed(name, world.generation, held.position, (), 0.0, now, now)
        for name, held in reports.items()
        if held.position == position and any(other.position < position for other in reports.values())
    }
    recovery = replace(
        recovery,
        opened=now,
        resumed=ahead,
        step=min(held.position.step for held in reports.values()),
        lost=(*recovery.lost, *gone),
        lost_microbatches=lost_microbatches,
        stamps={**recovery.stamps, "opened": now},
        reason=f"building the group of generation {recovery.generation}: {why}",
    )
    poison = state.poison.get(position.first, frozenset())
    message = Open(
        world,
        position,
        shared.indices,
        store_address(state, world.generation),
        shared.work,
        poison,
        shared.shadows,
        shared.dropped,
    )
    actions: list[Action] = [Send(member.incarnation, message) for member in world.members]
    facts = {
        "world": len(world.members),
        "step": position.step,
        "lost_microbatches": list(shared.lost),
        "reason": why,
    }
    return replace(state, world=world, recovery=recovery), [
        Record("opened", world.generation, facts),
        *actions,
    ]


def store_address(state: State, generation: Generation) -> StoreAddress:
    """Where the members of a generation meet."""
    assert state.store is not None
    host, port = state.store
    return StoreAddress(host, port, f"{state.settings.store_prefix}/{generation}")


def _deathless(state: State, now: float) -> tuple[State, list[Action], bool]:
    """An error without a death re-forms the same members; the third time the most accused is shut out."""
    state = replace(state, deathless=state.deathless + 1)
    if state.deathless < DEATHLESS_LIMIT:
        return state, [], False
    living = {rank.incarnation for rank in state.members}
    accused = {name: count for name, count in state.accusations.items() if name in living}
    if not accused:
        error = f"collectives failed {state.deathless} times in a row and nobody can be blamed; {state.first_cause}"
        return (*fail(state, error), False)
    culprit = max(accused, key=lambda name: (accused[name], name))
    reason = f"accused by its peers in {accused[culprit]} failed collectives in a row without a death"
    state, actions = fence(state, culprit, reason, now)
    return replace(state, deathless=0, accusations={}), actions, True


def _orphans(state: State) -> tuple[Rank, ...]:
    """Living members whose replica is not whole any more."""
    size = state.settings.ranks_per_replica
    held = [rank.seat.replica for rank in state.members]
    return tuple(rank for rank in state.members if held.count(rank.seat.replica) < size)


def _phases(recovery: Recovery, now: float) -> dict[str, float]:
    """Seconds by phase; they follow each other and add up to ``total``."""
    stamps = recovery.stamps
    opened = recovery.opened
    rebuilt = min(stamps.get("rebuilt", now), now)
    reduce = max((held.decided - held.reduced for held in recovery.resumed.values()), default=0.0)
    reduce = min(reduce, now - rebuilt)
    reported = stamps.get("reported", opened)
    return {
        "notice and report": reported - recovery.started,
        "plan": opened - reported,
        "rebuild": rebuilt - opened,
        "recompute": now - rebuilt - reduce,
        "reduce and vote": reduce,
        "total": now - recovery.started,
    }


def _old_world(state: State) -> World:
    assert state.world is not None
    return state.world


def _waiting_reason(silent: list[Rank], doomed: tuple[Rank, ...]) -> str:
    parts = []
    if silent:
        parts.append("reports of ranks " + ", ".join(str(rank.seat) for rank in silent))
    if doomed:
        parts.append("the end of fenced ranks " + ", ".join(str(rank.seat) for rank in doomed))
    return "waiting for " + " and ".join(parts)


def member_of(rank: Rank) -> Member:
    return Member(rank.incarnation, rank.seat, rank.node)

"""Ranks that come and go: from the start to the first generation, who joins and leaves later, what an end means."""

from collections.abc import Callable, Iterable

from ...actors.messages import Hello, Ready
from ...monitors.agreement import Difference, first_difference
from ...policies.values import changed
from ...policies.world import Member, Position, Seat, WorkKind
from ..view import Phase
from . import recovery
from .answer import leavers
from .asking import ask, failed
from .events import Action, KillRank, Record, StartRank
from .opening import PARKED_S, hold, open_first
from .resuming import refusal
from .roster import Roster
from .seating import reseated, whole
from .sentinels import moved_out, settled
from .state import Rank, Standing, State, names, without
from .verdicts import fail, fence, succeed

Step = tuple[State, list[Action]]


def start(state: State, now: float) -> Step:
    """Ask for every rank, in the order of the seats; spares come last."""
    settings = state.settings
    size, seated = settings.ranks_per_replica, len(settings.ranks) - settings.spares
    ranks = {}
    for place, name in enumerate(settings.ranks):
        seat = Seat(place // size, place % size) if place < seated else None
        ranks[name] = Rank(name, seat, asked=now, last_heard=now)
    actions: list[Action] = [StartRank(rank.incarnation, rank.seat) for rank in ranks.values()]
    state = changed(
        state,
        ranks=state.ranks.update(ranks),
        serial=len(ranks),
        target=settings.replicas,
        awaited=names(settings.ranks[:seated]),
        coming=names(settings.ranks),
        started=now,
    )
    return state, actions


def hello(state: State, incarnation: str, message: Hello) -> Step:
    """A rank's process is up."""
    record = Record("rank up", facts={**state.ranks[incarnation].facts, "pid": message.pid, "node": message.node})
    state = state.rank(incarnation, pid=message.pid, node=message.node, environment=message.environment)
    state, actions = settled(state, message)
    return state, [record, *actions]


def ready(state: State, incarnation: str, message: Ready, now: float) -> Step:
    """A rank stands in ``begin``: it begins with the others, or it is parked until it is needed."""
    rank = state.ranks[incarnation]
    if rank.ready is not None:
        return state, []
    if state.is_member(incarnation):
        # A controller that took over knows it from what it serves, before it says this again.
        return state.rank(incarnation, ready=message), []
    state = state.rank(incarnation, ready=message, standing=Standing.READY, start_s=now - rank.asked)
    state = changed(state, awaited=without(state.awaited, incarnation), coming=without(state.coming, incarnation))
    if rank.seat is not None and state.world is None:
        # Whoever is not the last one changes nothing, and need not look at all others.
        return (state, []) if state.awaited else try_open(state, now)
    state = changed(state, parked=state.parked.set(incarnation, None))
    if state.world is None:
        return state, [hold(state, incarnation, PARKED_S, "it is a spare")]
    # The others were equal when they began, so one of them speaks for all.
    known = [member for member in state.members if member.ready is not None][:1]
    if difference := _unequal([*known, state.ranks[incarnation]]):
        return fence(state, incarnation, _explain(difference), now)
    actions: list[Action] = [
        Record("parked", facts={"rank": rank.title}),
        hold(state, incarnation, PARKED_S, "it is not needed yet"),
    ]
    if state.recovery is not None and state.recovery.waiting:
        state, more = recovery.plan(state, now)
    else:
        state, more = settle(state, now)
    return state, [*actions, *more]


def ended(state: State, incarnation: str, cause: str, now: float) -> Step:
    """A rank is gone."""
    rank = state.ranks[incarnation]
    was = rank.standing
    if was in (Standing.GONE, Standing.LEFT):
        state = moved_out(state.rank(incarnation, standing=Standing.GONE), rank)
        return state, [Record("end confirmed", facts={"rank": rank.title, "cause": cause})]
    cause = rank.cause or cause
    if was is not Standing.FENCED and rank.node in state.draining:
        cause = f"{cause} (foreseen: its node was to be left)"
    member = state.is_member(incarnation)
    state = moved_out(state.lost(incarnation, standing=Standing.GONE, cause=cause), rank, fell=now)
    said = f"{rank.title}: {cause}"
    state = changed(state, first_cause=state.first_cause or said)
    # A broken connection is not yet a dead process; killing it again is harmless, trusting it is not.
    record = Record("rank gone", facts={**rank.facts, "cause": cause})
    kill = KillRank(incarnation, cause)
    if was is not Standing.FENCED:
        state = failed(state, rank, cause, now)
    if state.world is None:
        state, actions = try_open(reseated(state), now)
    elif was is Standing.FENCED:
        state, actions = recovery.plan(state, now)
    elif not member:
        state, actions = refill(state, now)
    elif (ending := succeed(state))[0].phase.ended:
        # The others have applied every step: nothing of the lost rank is needed any more.
        state, actions = ending
    else:
        state, actions = recovery.begin(recovery.explain(state, said), said, now)
        state, more = recovery.plan(state, now)
        actions = [*actions, *more]
        state, more = refill(state, now)
        actions = [*actions, *more]
    return state, [record, kill, *actions]


def refill(state: State, now: float) -> Step:
    """Ask for ranks in the place of those that are gone, if that is wanted."""
    waits = state.phase is Phase.WAITING
    wanted = (state.settings.replaces and state.world is not None) or waits
    return ask(state, now) if wanted and not (state.phase.ended or state.finishing) else (state, [])


def resize(state: State, replicas: int, now: float) -> Step:
    """More replicas are asked for, fewer leave: those with the highest ids."""
    if replicas < state.settings.minimum:
        text = f"{replicas} replicas are fewer than the minimum of {state.settings.minimum}: the world stays as it is"
        return changed(state, warnings=(*state.warnings, text)), [Record("warning", facts={"text": text})]
    state = changed(state, target=replicas)
    record = Record("resized", facts={"replicas": replicas})
    if state.world is None:
        # Who is too many leaves the first generation.
        state, asked = ask(state, now)
        return state, [record, *asked]
    state = surplus(state)
    state, asked = ask(state, now)
    state, actions = settle(state, now)
    return state, [record, *asked, *actions]


def dismiss(state: State, incarnation: str, reason: str) -> Step:
    """A rank that is no member is not needed any more; that is no failure."""
    facts = {**state.ranks[incarnation].facts, "reason": reason}
    state = state.lost(incarnation, standing=Standing.LEFT, cause=reason)
    return state, [KillRank(incarnation, reason), Record("dismissed", facts=facts)]


def surplus(state: State) -> State:
    """More replicas train than there should be: those with the highest ids are to leave."""
    assert state.world is not None
    alive = {state.world.by_name[name].seat.replica for name in state.present}
    staying = [each for each in state.world.replicas if each in alive and not _leaves(state, each)]
    return leave(state, lambda member: member.seat.replica in staying[state.target :])


def leave(state: State, chosen: Callable[[Member], bool]) -> State:
    """These members are to leave, and have not been told yet."""
    leaving = state.leaving
    for member in state.world.members if state.world is not None else ():
        if chosen(member) and state.is_member(member.incarnation) and member.incarnation not in leaving:
            leaving = leaving.set(member.incarnation, None)
    return changed(state, leaving=leaving)


def settle(state: State, now: float) -> Step:
    """Begin to change the world if ranks are to join or to leave and nothing else is under way."""
    if state.phase is not Phase.RUNNING or state.recovery is not None or state.finishing or state.world is None:
        return state, []
    newest = max(state.begun, default=None)
    reason = _wanted(state, newest)
    if reason is None:
        return state, []
    return recovery.begin(changed(state, tried=newest), reason, now, planned=True)


def try_open(state: State, now: float) -> Step:
    """Open the first generation once every seated rank is ready, or enough are when the patience ends."""
    if state.world is not None or state.store is None or not state.ranks:
        return state, []
    size, timeouts = state.settings.ranks_per_replica, state.settings.timeouts
    actions: list[Action] = []
    if now - state.started > timeouts.start:
        for rank in state.living:
            if rank.ready is None:
                state = state.lost(rank.incarnation, standing=Standing.FENCED, fenced=now, cause="not ready in time")
                actions.append(KillRank(rank.incarnation, "not ready in time"))
        state = reseated(state)
    living = [rank for rank in state.living if rank.seat is not None]
    members = whole(living, size)
    if len(members) < state.settings.minimum * size:
        late = [rank.title.removeprefix("rank ") for rank in state.ranks.values() if rank.cause == "not ready in time"]
        if late:
            return fail(
                state,
                f"{len(members)} of {state.settings.minimum * size} ranks reached begin within {timeouts.start:g} s; "
                f"missing: {', '.join(sorted(late))} (are there enough resources?)",
            )
        if state.resume is not None and state.settings.replaces:
            # What is saved is worth another start.
            state, asked = ask(state, now)
            return reseated(state), [*actions, *asked]
        return fail(state, f"{len(members)} ranks are left before the first step, {state.settings.minimum * size} are "
                    f"needed; first cause: {state.first_cause}")  # fmt: skip
    if any(state.ranks[member.incarnation].ready is None for member in members):
        return state, actions
    if difference := _unequal([state.ranks[member.incarnation] for member in members]):
        return fail(state, _explain(difference))
    if reason := refusal(state):
        return fail(state, reason)
    state, more = open_first(state, Roster(members, {}))
    state = leave(state, lambda member: member.seat.replica >= state.target or member.node in state.draining)
    return state, [*actions, *more]


def _leaves(state: State, replica: int) -> bool:
    held = state.world.members if state.world is not None else ()
    return any(member.seat.replica == replica and member.incarnation in state.leaving for member in held)


def _wanted(state: State, newest: Position | None) -> str | None:
    """Why the world should change now, None if it should not."""
    assert state.world is not None
    told = list(state.leaving.values())
    size = state.settings.ranks_per_replica
    staying = len(state.world.replicas)
    if state.leaving:
        staying -= leavers(state, state.world.replicas)
    if None in told and staying > 0:
        return f"ranks told to leave: {told.count(None)}"
    if newest is None:
        return None
    enough = staying >= max(1, state.settings.minimum)
    if enough and any(position is not None and position.first < newest.first for position in told):
        return "ranks leave that have nothing left to do"
    can_join = newest != state.tried and state.begun[newest][1].kind is WorkKind.TRAINING
    if can_join and len(state.parked) >= size and staying < state.target:
        return f"replicas ready to join: {min(len(state.parked) // size, state.target - staying)}"
    # Those who are to leave stay until others have come, so they count here.
    if can_join and len(state.world.replicas) < state.settings.minimum:
        return f"{len(state.world.replicas)} replicas are fewer than the minimum of {state.settings.minimum}"
    return None


def _unequal(ranks: Iterable[Rank]) -> Difference | None:
    """The first fact on which members differ that must be equal for exact training."""
    facts = {}
    for rank in ranks:
        assert rank.ready is not None
        facts[rank.title] = {
            **{f"environment {key}": value for key, value in rank.environment.items()},
            **rank.ready.facts,
            "steps": str(rank.ready.steps),
            **{f"initial state of {name}": digest for name, digest in rank.ready.signatures.items()},
        }
    return first_difference(facts)


def _explain(difference: Difference) -> str:
    shown = ", ".join(f"{title}: {value[:16]}" for title, value in difference.values.items())
    return f"members differ in {difference.key} ({shown}); every rank must build the same from the same seed"

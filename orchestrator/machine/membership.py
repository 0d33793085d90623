"""Ranks that come and go: from the start to the first generation, and what the end of one means."""

from dataclasses import replace

from ...actors.messages import Hello, Open, Ready
from ...monitors.agreement import Difference, first_difference
from ...policies.world import Generation, Position, Seat, World
from ..view import Phase
from . import recovery
from .events import Action, KillRank, Record, Send, StartRank
from .state import Rank, Standing, State
from .verdicts import fail, succeed


def start(state: State, now: float) -> tuple[State, list[Action]]:
    """Ask for every rank, in the order of the seats."""
    size = state.settings.ranks_per_replica
    ranks = {
        name: Rank(name, Seat(place // size, place % size), last_heard=now)
        for place, name in enumerate(state.settings.ranks)
    }
    actions: list[Action] = [StartRank(rank.incarnation, rank.seat) for rank in ranks.values()]
    return replace(state, ranks=ranks, started=now), actions


def hello(state: State, incarnation: str, message: Hello) -> tuple[State, list[Action]]:
    """A rank's process is up."""
    return (
        state.rank(incarnation, pid=message.pid, node=message.node, environment=message.environment),
        [Record("rank up", facts={"rank": str(state.ranks[incarnation].seat), "pid": message.pid})],
    )


def ready(state: State, incarnation: str, message: Ready, now: float) -> tuple[State, list[Action]]:
    """A rank stands in ``begin``."""
    if state.ranks[incarnation].ready is not None:
        return state, []
    return try_open(state.rank(incarnation, ready=message, standing=Standing.READY), now)


def ended(state: State, incarnation: str, cause: str, now: float) -> tuple[State, list[Action]]:
    """A rank is gone."""
    rank = state.ranks[incarnation]
    if rank.standing is Standing.GONE:
        return state, [Record("end confirmed", facts={"rank": str(rank.seat), "cause": cause})]
    was = rank.standing
    cause = rank.cause or cause
    state = state.rank(incarnation, standing=Standing.GONE, cause=cause)
    if state.phase.ended:
        return state, []
    said = f"rank {rank.seat}: {cause}"
    state = replace(state, first_cause=state.first_cause or said)
    # A broken connection is not yet a dead process; killing it again is harmless, trusting it is not.
    record = Record("rank gone", facts={"rank": str(rank.seat), "cause": cause})
    kill = KillRank(incarnation, cause)
    world = state.world
    if world is None:
        state, actions = try_open(state, now)
    elif was is Standing.FENCED:
        state, actions = recovery.plan(state, now)
    elif world.member(incarnation) is None:
        return state, [record, kill]
    elif (ending := succeed(state))[0].phase.ended:
        # The others have applied every step: nothing of the lost rank is needed any more.
        state, actions = ending
    else:
        state, actions = recovery.begin(recovery.explain(state, said), said, now)
        state, more = recovery.plan(state, now)
        actions = [*actions, *more]
    return state, [record, kill, *actions]


def try_open(state: State, now: float) -> tuple[State, list[Action]]:
    """Open the first generation once every living rank is ready, or enough are when the patience ends."""
    if state.world is not None or state.store is None:
        return state, []
    living = state.living
    there = tuple(rank for rank in living if rank.ready is not None)
    size = state.settings.ranks_per_replica
    minimum = state.settings.minimum * size
    if len(living) < minimum:
        return fail(state, f"{len(living)} ranks are left before the first step, {minimum} are needed; "
                    f"first cause: {state.first_cause}")  # fmt: skip
    late = now - state.started > state.settings.timeouts.start
    if len(there) < len(living) and not late:
        return state, []
    if len(there) < minimum:
        seats = ", ".join(str(rank.seat) for rank in living if rank.ready is None)
        return fail(
            state,
            f"{len(there)} of {minimum} ranks reached begin within {state.settings.timeouts.start:g} s; "
            f"missing: {seats} (are there enough resources?)",
        )
    left_out: list[Action] = [KillRank(rank.incarnation, "not ready in time") for rank in living if rank.ready is None]
    for rank in living:
        if rank.ready is None:
            state = state.rank(rank.incarnation, standing=Standing.FENCED, fenced=now, cause="not ready in time")
    whole = {
        replica
        for replica in {rank.seat.replica for rank in there}
        if sum(rank.seat.replica == replica for rank in there) == size
    }
    there = tuple(rank for rank in there if rank.seat.replica in whole)
    if difference := _unequal(there):
        return fail(state, _explain(difference))
    state, actions = _open_first(state, there)
    return state, [*left_out, *actions]


def _open_first(state: State, ranks: tuple[Rank, ...]) -> tuple[State, list[Action]]:
    number = state.number + 1
    generation = Generation(state.settings.term, number)
    members = tuple(recovery.member_of(rank) for rank in sorted(ranks, key=lambda rank: rank.seat))
    world = World(generation, members, state.settings.ranks_per_replica)
    for rank in ranks:
        state = state.rank(rank.incarnation, standing=Standing.MEMBER)
    state = replace(state, world=world, number=number, phase=Phase.RUNNING)
    message = Open(world, Position(0), {}, recovery.store_address(state, generation))
    actions: list[Action] = [Send(member.incarnation, message) for member in members]
    return state, [Record("opened", generation, {"world": len(members), "step": 0}), *actions]


def _unequal(ranks: tuple[Rank, ...]) -> Difference | None:
    """The first fact on which members differ that must be equal for exact training."""
    facts = {}
    for rank in ranks:
        assert rank.ready is not None
        facts[str(rank.seat)] = {
            **{f"environment {key}": value for key, value in rank.environment.items()},
            **rank.ready.facts,
            "steps": str(rank.ready.steps),
            **{f"initial state of {name}": digest for name, digest in rank.ready.signatures.items()},
        }
    return first_difference(facts)


def _explain(difference: Difference) -> str:
    shown = ", ".join(f"rank {seat}: {value[:16]}" for seat, value in difference.values.items())
    return f"members differ in {difference.key} ({shown}); every rank must build the same from the same seed"

"""The message that opens a generation, and what the machine remembers of it."""

from collections.abc import Collection, Iterable

from ...actors.messages import Hold, Open, Release, Restore, StoreAddress
from ...actors.saved.sources import START
from ...policies.values import changed
from ...policies.world import Generation, Position, World
from ..view import Phase
from .answer import Answer, Scene
from .events import Action, Record, Send
from .reporting import Alike
from .roster import Roster, restored
from .sharing import Shared, share
from .sources import went_back
from .speeds import recent, speeds
from .state import Names, Standing, State, without
from .trust import carried_out, pending

# What a rank that is parked waits for comes when somebody dies, which may be never.
PARKED_S = 30 * 86400.0


def open_first(state: State, roster: Roster) -> tuple[State, list[Action]]:
    """The first generation of a run: nobody has begun anything, or everybody goes on from what was saved."""
    number = state.number + 1
    generation = Generation(state.settings.term, number)
    world = World(generation, roster.members, state.settings.ranks_per_replica)
    resume = state.resume
    message = Open(world, Position(0), {}, _store(state, generation))
    if resume is not None:
        sources = restored(roster).sources
        restore = Restore(resume.source, resume.step, times=state.setbacks, changes=state.changes)
        message = changed(message, position=Position(resume.step), sources=sources, restore=restore)
    undone: list[Action] = []
    if resume is not None or pending(state):
        state, undone = carried_out(state, message.restore or Restore(START, 0), generation)
        # Nobody is there who would have to go back.
        state = changed(state, rollback=None)
    state = _seated(changed(state, number=number, phase=Phase.RUNNING), message)
    actions: list[Action] = [*undone, *(Send(member.incarnation, message) for member in world.members)]
    for rank in state.living:
        if rank.seat is not None and world.member(rank.incarnation) is None:
            # Its replica is not whole.
            state, more = _unseated(state, rank.incarnation)
            actions += more
    facts = {"world": len(world.members), "step": message.position.step}
    # Written when it was sent: a later life must not take ranks for lost that were never told.
    return state, [*actions, Record("opened", generation, facts)]


def open_next(state: State, chosen: Answer, found: Scene, now: float) -> tuple[State, list[Action]]:
    """The generation that a recovery, or ranks that join or leave, have prepared."""
    recovery, old, roster = state.recovery, state.world, chosen.roster
    assert recovery is not None
    assert old is not None
    assert roster is not None
    world = World(recovery.generation, roster.members, old.ranks_per_replica)
    reports, released = found.reports, found.released
    position = chosen.position
    restore = chosen.restore and changed(chosen.restore, times=state.setbacks + 1, changes=state.changes)
    leaving = _leaving(state, world)
    settings, rounds = state.settings, state.rounds
    by_speed = settings.workload.by_speed and bool(rounds.slow or not settings.alike)
    measured = speeds(state.ranks, world, recent(rounds)) if by_speed else {}
    shared = Shared() if chosen.anew else share(state, world, position, reports, leaving, roster.sources, measured)
    message = Open(
        world,
        position,
        shared.indices,
        _store(state, world.generation),
        shared.work,
        state.poison,
        shadows=shared.shadows,
        dropped=shared.dropped,
        speeds=measured,
        leaving=leaving,
        sources=roster.sources,
        restore=restore,
    )
    gone = tuple(member.seat for name, member in old.by_name.items() if name not in reports)
    left_over = reports.keys() - world.names
    if chosen.anew:
        state = _forgotten(state, position)
    state = _seated(state, message, left_over)
    recovery = changed(
        recovery,
        opened=now,
        waiting=0.0,
        step=min((said.position.step for said in found.groups), default=position.step),
        lost=(*recovery.lost, *gone),
        lost_microbatches=tuple(sorted({*recovery.lost_microbatches, *shared.lost})),
        unbuilt=state.present,
        pending=state.unfinished if chosen.anew else _behind(state.unfinished, found.groups, position),
        stamps={"reported": recovery.stamps.get("reported", now), "opened": now},
        reason=chosen.reason,
    )
    phase = Phase.RECOVERING if state.phase is Phase.WAITING else state.phase
    state = changed(state, phase=phase, recovery=recovery)
    undone: list[Action] = []
    if restore is not None:
        state, undone = carried_out(went_back(state, restore), restore, world.generation)
    actions: list[Action] = [*undone, *(Send(name, message) for name in world.names)]
    for name in sorted(left_over.difference(released)):
        state, more = _unseated(state, name)
        actions += more
    for name in released:
        state = state.lost(name, standing=Standing.LEFT, cause="it left as it was asked to")
        actions += [Send(name, Release()), Record("left", facts=state.ranks[name].facts)]
    facts = {
        "world": len(world.members),
        "step": position.step,
        "lost": [str(seat) for seat in recovery.lost],
        "lost_microbatches": list(recovery.lost_microbatches),
        "reason": chosen.reason,
    }
    return state, [Record("opened", world.generation, facts), *actions]


def hold(state: State, incarnation: str, seconds: float, reason: str) -> Send:
    """Tell a rank that a new generation may be long in coming."""
    return Send(incarnation, Hold(seconds + state.settings.timeouts.recovery, reason, state.store))


def _unseated(state: State, incarnation: str) -> tuple[State, list[Action]]:
    """There is no place for it in the newest world: it waits as a spare, or will when it is ready."""
    rank = state.ranks[incarnation]
    if rank.ready is None:
        return state.rank(incarnation, seat=None), []
    standing = Standing.SUSPECT if rank.standing is Standing.SUSPECT else Standing.READY
    state = state.rank(incarnation, seat=None, standing=standing, finished=None)
    state = changed(state, parked=state.parked.set(incarnation, None))
    return state, [hold(state, incarnation, PARKED_S, "there is no place for it now: it is a spare")]


def _store(state: State, generation: Generation) -> StoreAddress:
    """Where the members of a generation meet."""
    assert state.store is not None
    host, port = state.store
    return StoreAddress(host, port, f"{state.settings.store_prefix}/{generation}")


def _seated(state: State, message: Open, left_over: Collection[str] = ()) -> State:
    """Everybody in the new world has its seat; most have the one that they had."""
    world, old = message.world, state.world.by_name if state.world is not None else {}
    parked, ranks = state.parked, state.ranks.mutate()
    present, unfinished = state.present.mutate(), state.unfinished.mutate()
    for name in left_over:
        present.pop(name, None)
        unfinished.pop(name, None)
    for name, member in world.by_name.items():
        if old.get(name) is member:
            continue
        rank = ranks[name]
        standing = Standing.MEMBER if rank.standing is Standing.READY else rank.standing
        ranks[name] = changed(rank, seat=member.seat, standing=standing)
        parked = without(parked, name)
        present[name] = None
        # Whoever takes another seat takes another state.
        unfinished[name] = None
    leaving = state.leaving
    for name in message.leaving:
        if leaving.get(name) is None:
            leaving = leaving.set(name, message.position)
    return changed(
        state,
        world=world,
        opened=message,
        anew=frozenset(message.sources),
        ranks=ranks.finish(),
        parked=parked,
        leaving=leaving,
        present=present.finish(),
        unfinished=unfinished.finish(),
    )


def _forgotten(state: State, position: Position) -> State:
    """What was heard of positions that come once more is void; ranks that had finished go on."""
    ranks = state.ranks.mutate()
    for rank in state.members:
        standing = Standing.MEMBER if rank.standing is Standing.FINISHED else rank.standing
        ranks[rank.incarnation] = changed(rank, position=position, finished=None, standing=standing)
    begun = {place: said for place, said in state.begun.items() if place < position}
    return changed(state, ranks=ranks.finish(), unfinished=state.present, begun=begun, tried=None, finishing=0.0)


def _leaving(state: State, world: World) -> frozenset[str]:
    """Members that begin no work any more: a replica leaves as a whole, and not before others have come if all do."""
    if not state.leaving:
        return frozenset()
    replicas = {member.seat.replica for member in world.members if member.incarnation in state.leaving}
    if len(replicas) == len(world.replicas):
        return frozenset()
    return frozenset(member.incarnation for member in world.members if member.seat.replica in replicas)


def _behind(unfinished: Names, groups: Iterable[Alike], position: Position) -> Names:
    """Those who have yet to decide something: whoever is ahead has decided what the others are about to follow."""
    there = [said for said in groups if not said.lacks]
    if all(said.position == position for said in there):
        return unfinished
    for said in there:
        if said.position == position:
            for name in said.names:
                unfinished = without(unfinished, name)
    return unfinished

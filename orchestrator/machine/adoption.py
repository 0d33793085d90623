"""A later controller life takes over: it hears who lives and where they stand, and lets them train on.

Ranks come by themselves and say what they told the earlier life. The newest world that any of them was told of is the
one that counts: nothing can have been decided in it, or after it, without all of its members. When each of those was
heard or is known to be dead, or has kept this waiting for too long, the run goes on: undisturbed if all of them serve
that world, else by a new generation, which they all report to anew.
"""

from immutables import Map

from ...actors.messages import Fenced, Heartbeat, Hello, Ping, Ready, Restore, Serving
from ...policies.values import changed
from ...policies.world import Generation, Seat, World
from ..view import Phase
from . import membership, recovery, trust
from .events import (
    Action,
    Ended,
    EndRun,
    Event,
    Found,
    Heard,
    KillRank,
    Record,
    Send,
    StartRank,
    StopRequested,
    StoreOpened,
    Tick,
)
from .memory import inherited
from .opening import PARKED_S, hold
from .past import Past
from .sentinels import moved_out
from .sources import went_back
from .state import Adoption, Rank, Recovery, Standing, State, names, without
from .verdicts import begun, fail, fence

Step = tuple[State, list[Action]]


def take_over(state: State, past: Past, living: frozenset[str] | None, at: float, now: float) -> Step:
    """Begin with what the journals say, and wait for the ranks."""
    state = changed(
        inherited(state, past, now - at), phase=Phase.ADOPTING, started=now, serial=len(state.settings.ranks)
    )
    facts = {"earlier generation": past.generation, "ranks": len(past.ranks), "ended": past.ending is not None}
    record = Record("taken over", facts=facts)
    if past.ending is not None:
        end = past.ending
        state = changed(
            state, phase=Phase(end.phase), error=end.error, traceback=end.traceback, metrics=dict(end.metrics)
        )
        # Whoever still waits to be let go has nothing left to do.
        left = [KillRank(name, "the run is over") for name, known in past.ranks.items() if not known.gone]
        return state, [record, *left, EndRun()]
    ranks = {}
    for name, known in past.ranks.items():
        gone = known.gone or (living is not None and name not in living)
        standing = Standing.GONE if gone else Standing.STARTING
        ranks[name] = Rank(name, known.seat, standing, known.node, asked=now, last_heard=now, cause=_lost(gone))
    for name in (living or frozenset()) - ranks.keys():
        ranks[name] = Rank(name, asked=now, last_heard=now)
    awaited = names(name for name, rank in ranks.items() if rank.standing.living)
    adoption = Adoption(now, at, past, living, awaited=awaited)
    # Who must have died is known at once.
    return _perhaps(changed(state, ranks=Map(ranks), adoption=adoption), now, [record])


def again(state: State, late: Heard, now: float) -> Step:
    """Somebody has a world who was not heard in time: nobody begins anew before the others of that world are heard."""
    living = frozenset(rank.incarnation for rank in state.living)
    adoption = Adoption(now, 0.0, Past(), living)
    state = changed(state, phase=Phase.ADOPTING, resume=None, adoption=adoption)
    state, actions = hear(state, late, now)
    return state, [Record("adopting again", facts={"rank": late.incarnation}), *actions]


def hear(state: State, event: Event, now: float) -> Step:
    """What happens while ranks are awaited; what can wait is heard when they are here."""
    adoption = state.adoption
    assert adoption is not None
    match event:
        case Heard(name, Hello() as message) if name not in state.ranks or state.ranks[name].standing.living:
            if name not in state.ranks:
                state = changed(state, ranks=state.ranks.set(name, Rank(name, asked=now)))
                if adoption.world is None:
                    adoption = changed(adoption, awaited=adoption.awaited.set(name, None))
            seat = state.ranks[name].seat or message.seat
            state = changed(state.rank(name, seat=seat, last_heard=now), adoption=adoption)
            return membership.hello(state, name, message)
        case Heard(name, message) if name in state.ranks and state.ranks[name].standing.living:
            return _heard(state.rank(name, last_heard=now), name, event, now)
        case Heard(name, message):
            record = Record("refused, its sender is fenced", facts={"rank": name, "message": type(message).__name__})
            return state, [record, Send(name, Fenced("this rank was replaced or given up"))]
        case Ended(name, cause):
            rank = state.ranks.get(name) or Rank(name)
            if rank.standing is Standing.GONE:
                return state, []
            gone = changed(rank, standing=Standing.GONE, cause=cause)
            first = state.first_cause or f"{gone.title}: {cause}"
            state = changed(state, ranks=state.ranks.set(name, gone), first_cause=first)
            state = moved_out(state, gone)
            return _perhaps(_not_awaited(state, name), now, [Record("rank gone", facts={**gone.facts, "cause": cause})])
        case Tick(asleep):
            # Nobody was late while nobody could be heard.
            adoption = changed(adoption, began=min(now, adoption.began + asleep))
            state = changed(state, adoption=adoption)
            pings: list[Action] = [Send(rank.incarnation, Ping()) for rank in state.living if rank.pid]
            if now - adoption.began > state.settings.timeouts.adopt:
                state, actions = _go_on(state, now)
                return state, [*pings, *actions]
            return state, pings
        case StoreOpened(host, port):
            return changed(state, store=(host, port)), []
        case StopRequested(reason):
            return fail(changed(state, adoption=None), f"stopped: {reason}")
    later = adoption.later.set(len(adoption.later), event)
    return changed(state, adoption=changed(adoption, later=later)), []


def _heard(state: State, name: str, event: Heard, now: float) -> Step:
    adoption = state.adoption
    assert adoption is not None
    match event.message:
        case Ready() as message:
            state = state.rank(name, ready=message, standing=Standing.READY)
            # It is the next word of whoever serves a world.
            return _perhaps(_not_awaited(state, name), now, []) if name in adoption.serving else (state, [])
        case Heartbeat() as message:
            facts = {"position": message.position, "stage": message.stage, "computed": message.computed}
            facts |= {"spent": message.spent, "told_at": now}
            state = state.rank(name, busy=message.busy, held=message.held, **facts)
            if message.records:
                # Perhaps its last words.
                adoption = changed(adoption, later=adoption.later.set(len(adoption.later), event))
                state = changed(state, adoption=adoption)
            # It comes after the introduction: if that told of no world, this rank has none.
            return (state, []) if adoption.world else _perhaps(_not_awaited(state, name), now, [])
        case Serving() as message if message.world.generation >= _served(adoption, name, message):
            adoption = changed(adoption, serving=adoption.serving.set(name, message))
            state = state.rank(name, position=message.position)
            if adoption.world is None or message.world.generation > adoption.world.generation:
                awaited = (each for each in message.world.incarnations if _may_come(state, adoption, each))
                adoption = changed(adoption, world=message.world, awaited=names(awaited))
            return changed(state, adoption=adoption), []
    later = adoption.later.set(len(adoption.later), event)
    return changed(state, adoption=changed(adoption, later=later)), []


def _served(adoption: Adoption, name: str, message: Serving) -> Generation:
    """The newest generation that a rank has said that it serves."""
    return adoption.serving.get(name, message).world.generation


def _may_come(state: State, adoption: Adoption, name: str) -> bool:
    """Whether a member must be waited for: it lives as far as anybody knows, and has not said where it stands."""
    rank = state.ranks.get(name)
    if rank is not None and (not rank.standing.living or (name in adoption.serving and rank.ready)):
        return False
    return rank is not None or adoption.living is None or name in adoption.living


def _not_awaited(state: State, name: str) -> State:
    adoption = state.adoption
    assert adoption is not None
    return changed(state, adoption=changed(adoption, awaited=without(adoption.awaited, name)))


def _perhaps(state: State, now: float, actions: list[Action]) -> Step:
    """Go on if everybody is here who must be."""
    adoption = state.adoption
    assert adoption is not None
    # Where nothing is known, anybody may still come.
    known = adoption.world is not None or adoption.past.ranks or adoption.living is not None
    if adoption.awaited or not known:
        return state, actions
    state, more = _go_on(state, now)
    return state, [*actions, *more]


def _go_on(state: State, now: float) -> Step:
    adoption = state.adoption
    assert adoption is not None
    coming = names(rank.incarnation for rank in state.living if rank.ready is None)
    state = changed(state, adoption=None, coming=coming)
    if adoption.world is None:
        return _start_on(state, adoption, now)
    return _train_on(state, adoption, adoption.world, now)


def _start_on(state: State, adoption: Adoption, now: float) -> Step:
    """Nobody lives who was told of a generation: ask for whoever is missing, and begin, or go on from what is saved."""
    settings = state.settings
    if adoption.past.generation:
        if not state.saved:
            error = "no rank of the newest generation has outlived its controller"
            return fail(state, f"{error}; first cause: {state.first_cause or 'unknown'}")
        source, step = max(state.saved.items(), key=lambda held: held[1])
        restore = Restore(source, step, times=state.setbacks)
        if state.rollback is not None:
            restore = changed(trust.source_of(state, state.rollback.to), times=state.setbacks)
        resume = Found(restore.source, restore.step) if restore.step else None
        # Going back for want of trust is pending until somebody begins with that state.
        state = went_back(changed(state, resume=resume), restore)
    size, seated = settings.ranks_per_replica, len(settings.ranks) - settings.spares
    taken: set[Seat] = set()
    for rank in state.living:
        if rank.seat in taken:
            state = state.rank(rank.incarnation, seat=None)
        elif rank.seat is not None:
            taken.add(rank.seat)
    wanted = [Seat(place // size, place % size) for place in range(seated)]
    fresh = [
        Rank(name, seat, asked=now, last_heard=now)
        for name, seat in zip(settings.ranks, wanted, strict=False)
        if seat not in taken
    ]
    asked = {rank.incarnation: rank for rank in fresh}
    state = changed(state, ranks=state.ranks.update(asked), coming=state.coming.update(names(asked)))
    actions: list[Action] = [StartRank(rank.incarnation, rank.seat) for rank in fresh]
    parked = names(rank.incarnation for rank in state.living if rank.seat is None and rank.ready)
    state = changed(state, phase=Phase.STARTING, started=now, parked=parked)
    actions += [hold(state, name, PARKED_S, "it is a spare") for name in sorted(parked)]
    state, more = membership.try_open(state, now)
    return state, [*actions, *more]


def _train_on(state: State, adoption: Adoption, world: World, now: float) -> Step:
    """Everybody who matters was heard: nothing is sent if they all serve the newest world."""
    serving = adoption.serving
    ranks = state.ranks.mutate()
    silent, cause = [], ""
    for member in world.members:
        name = member.incarnation
        rank = ranks.get(name) or Rank(name, standing=Standing.GONE, cause=_lost(True), node=member.node)
        said = serving.get(name)
        if said is not None and rank.standing.living:
            rank = changed(rank, standing=Standing.MEMBER)
            if said.abandoned or said.world.generation != world.generation or not said.joined:
                cause = cause or f"rank {member.seat} has no group any more: its controller died"
        elif rank.standing.living:
            silent.append(name)
        ranks[name] = changed(rank, seat=member.seat)
    living = names(name for name in world.incarnations if ranks[name].standing.living)
    leaving = Map({name: place for name, place in adoption.past.leaving.items() if name in living})
    anew = next(said.anew for said in serving.values() if said.world.generation == world.generation)
    state = changed(
        state,
        phase=Phase.RUNNING,
        ranks=ranks.finish(),
        world=world,
        anew=anew,
        present=living,
        unfinished=living,
        leaving=leaving,
    )
    # An earlier life may have written that these are let go, and told nobody.
    state = membership.surplus(state) if adoption.past.target is not None else state
    state = membership.leave(state, lambda member: member.node in state.draining)
    actions: list[Action] = []
    for rank in state.living:
        if rank.incarnation in living:
            continue
        if rank.incarnation in serving and rank.incarnation not in adoption.past.ranks:
            # Nobody knows any more why it was left behind.
            state, more = fence(state, rank.incarnation, "it is no member of the newest generation", now)
            actions += more
        else:
            state = state.rank(rank.incarnation, seat=None)
            if rank.ready is not None:
                state = changed(state, parked=state.parked.set(rank.incarnation, None))
                # It may have come to ``begin`` while there was nobody who could tell it to wait.
                actions.append(hold(state, rank.incarnation, PARKED_S, "it is not needed yet"))
    for name in silent:
        reason = f"it did not come to the new controller within {state.settings.timeouts.adopt:g} s"
        state, more = fence(state, name, reason, now)
        actions += more
    for name in living:
        if name not in serving:
            continue
        said = serving[name]
        poison = {step: said.poison[step] | state.poison.get(step, frozenset()) for step in said.poison}
        state = changed(state, poison={**state.poison, **poison})
        if said.world.generation != world.generation:
            # It may not have heard that others have gone back.
            continue
        state, ending = begun(state, name, said.position, said.work)
        if ending:
            return state, [*actions, *ending]
    dead = [state.ranks[member.incarnation] for member in world.members if not state.is_member(member.incarnation)]
    if dead:
        cause = f"{dead[0].title}: {dead[0].cause}"
    left = adoption.past.unfinished
    found = left.opened.get(str(world.generation)) if left else None
    started = now - max(0.0, adoption.at - left.began) if left else now
    going_back = state.rollback
    if going_back is not None and (going_back.opened is None or going_back.opened > world.generation):
        # Nobody was told of a generation in which they do.
        cause = cause or going_back.reason
    record = Record("adopted", world.generation, {"world": len(state.present), "lost": len(dead)})
    actions.append(record)
    if cause:
        if left is not None and not (dead and adoption.past.guessed):
            cause = left.cause
        elif left is not None and state.first_cause == left.cause:
            # A death explains the failed collectives that were heard of before it.
            state = changed(state, first_cause=cause)
        state, more = recovery.begin(state, cause, now, started)
        if left is not None and state.recovery is not None:
            lost = {"lost": found.lost, "lost_microbatches": found.lost_microbatches} if found else {}
            state = changed(state, recovery=changed(state.recovery, before=left.before, **lost))
        state, planned = recovery.plan(state, now)
        return state, [*actions, *more, *planned]
    if left is not None and found is not None:
        # It was opened and everybody is in it: what is left to see is that they decide something there.
        opened = Recovery(
            generation=world.generation,
            before=left.before,
            cause=left.cause,
            started=started,
            step=found.step,
            opened=now,
            lost=found.lost,
            lost_microbatches=found.lost_microbatches,
            unbuilt=living,
            pending=living,
            reason=found.decision,
        )
        return changed(state, phase=Phase.RECOVERING, recovery=opened), actions
    return changed(state, rollback=None), actions


def _lost(gone: bool) -> str:
    return "it has not outlived its controller" if gone else ""

"""The machine: ``(state, event, now) -> (state, actions)``. Everything that decides passes through here.

It does no I/O and owns no clock: ``now`` comes in with the event, on a monotonic clock in seconds.
"""

from sys import maxsize

from ...actors.evidence import Evidence
from ...actors.messages import (
    FaultFired,
    Fenced,
    Finished,
    Heartbeat,
    Hello,
    Joined,
    Raised,
    Ready,
    Release,
    Report,
    Resumed,
    Serving,
)
from ...actors.node.sentinel_messages import SentinelBeat, SentinelHello
from ...actors.saving_messages import Cadence
from ...monitors.heartbeat import forgive
from ...policies.values import changed
from ..view import Phase
from . import (
    adoption,
    contributions,
    evidence,
    hangs,
    membership,
    nodes,
    records,
    recovery,
    reporting,
    resuming,
    seating,
    sentinels,
    stability,
    stragglers,
    verdicts,
)
from .events import (
    Action,
    Ended,
    Event,
    Found,
    Heard,
    Lost,
    NodeDraining,
    NodeLost,
    Record,
    Refused,
    Reports,
    Resize,
    Room,
    Saved,
    Send,
    Started,
    StopRequested,
    StoreOpened,
    Tick,
    TookOver,
    Warned,
)
from .plausible import impossible
from .state import Adoption, Standing, State

Step = tuple[State, list[Action]]


def advance(state: State, event: Event, now: float) -> Step:
    """What the run knows and does after ``event``."""
    after, actions = _advance(state, event, now)
    if after.checks and after.world is not state.world:
        after = evidence.settled(after)
    return after, actions


def _advance(state: State, event: Event, now: float) -> Step:
    if isinstance(event, Warned):
        return changed(state, warnings=(*state.warnings, event.text)), [Record("warning", facts={"text": event.text})]
    if isinstance(event, Reports):
        return _hear_reports(state, event, now)
    match event:
        case Heard(incarnation, SentinelHello() | SentinelBeat() as said):
            return sentinels.heard(state, incarnation, said, now)
        case Ended(incarnation, cause) if incarnation.startswith(sentinels.SENTINEL):
            return nodes.ended(state, incarnation, cause, now)
    if state.phase.ended:
        return _after_the_end(state, event)
    if isinstance(event, Heard) and (why := impossible(event.message, state.settings.ranks_per_replica)):
        facts = {"rank": event.incarnation, "message": type(event.message).__name__, "why": why}
        return state, [Record("refused, it cannot be true", facts=facts)]
    if state.adoption is not None:
        return _adopt(state, state.adoption, event, now)
    match event:
        case Started():
            return membership.start(state, now)
        case TookOver(past, living, at):
            return adoption.take_over(state, past, living, at, now)
        case StoreOpened(host, port):
            return membership.try_open(changed(state, store=(host, port)), now)
        case Heard(incarnation, message):
            return _heard(state, incarnation, message, now)
        case Ended(incarnation, cause) if incarnation not in state.ranks:
            # An earlier life has asked for it, and its journal is lost.
            return state, [Record("end confirmed", facts={"rank": incarnation, "cause": cause})]
        case Ended(incarnation, cause):
            state, actions = membership.ended(state, incarnation, cause, now)
            state, more = nodes.perhaps_lost(state, state.ranks[incarnation].node, now)
            return state, [*actions, *more]
        case Refused(reason):
            return state, [Record("connection refused", facts={"reason": reason})]
        case Tick(asleep):
            return _tick(state, asleep, now)
        case StopRequested(reason):
            return verdicts.fail(state, f"stopped: {reason}")
        case NodeLost(node, cause):
            return nodes.lost(state, node, cause, now)
        case NodeDraining(node, reason):
            return nodes.drain(state, node, reason, now)
        case Resize(replicas):
            return membership.resize(state, replicas, now)
        case Room(replicas, listed):
            return recovery.plan(changed(state, room=replicas, nodes=listed), now)
        case Found():
            return resuming.found(state, event)
        case Lost():
            return resuming.lost(state, event, now)
        case Saved():
            return resuming.saved(state, event), []


def _hear_reports(state: State, event: Reports, now: float) -> Step:
    """One after the other, but for those that only say what a member has."""
    actions: list[Action] = []
    taken = 0
    while taken < len(event.heard):
        state, count = reporting.fold(state, event.heard, taken, now)
        state, more = recovery.plan(state, now) if count else advance(state, event.heard[taken], now)
        actions += more
        taken += count or 1
    return state, actions


def _adopt(state: State, held: Adoption, event: Event, now: float) -> Step:
    state, actions = adoption.hear(state, event, now)
    if state.adoption is None:
        for _, later in sorted(held.later.items()):
            state, more = advance(state, later, now)
            actions += more
    return state, actions


def _heard(state: State, incarnation: str, message: object, now: float) -> Step:
    rank = state.ranks.get(incarnation)
    if rank is None and isinstance(message, FaultFired):
        # It is about to hit a vault.
        return _fired(state, message)
    if rank is not None and rank.standing is Standing.LEFT:
        return state, []
    last_words = rank is not None and rank.standing is Standing.GONE and isinstance(message, Raised | FaultFired)
    if rank is None or not (rank.standing.living or last_words):
        return state, [
            Record(
                "refused, its sender is fenced",
                facts={"rank": incarnation, "message": type(message).__name__},
            ),
            Send(incarnation, Fenced("this rank was replaced or given up")),
        ]
    match message:
        case Heartbeat():
            return _beat(state, incarnation, message, now)
        case Report():
            return recovery.report(state, incarnation, message, now)
    state = changed(state, ranks=state.heard(incarnation, now))
    match message:
        case Evidence():
            state, actions = evidence.heard(state, incarnation, message, now)
            state, more = contributions.heard(state, incarnation, message, now)
            return state, [*actions, *more]
        case Hello():
            return membership.hello(state, incarnation, message)
        case Ready():
            return membership.ready(state, incarnation, message, now)
        case Joined():
            return recovery.joined(state, incarnation, message, now)
        case Resumed():
            return recovery.resumed(state, incarnation, message, now)
        case Serving() if state.world is None:
            return adoption.again(state, Heard(incarnation, message), now)
        case Serving():
            # It is for controllers that have just taken over.
            return state, []
        case Raised():
            state, actions = verdicts.raised(state, incarnation, message)
            # It waits until it was heard: its controller may have died meanwhile.
            return state, actions if state.phase.ended else [*actions, Send(incarnation, Release())]
        case Finished(generation=said) if state.world is None or said != state.world.generation:
            # Everybody may have gone back since; if not, it says so again in the newest generation.
            return state, []
        case Finished() if not state.is_member(incarnation):
            # It has no place there.
            return state, []
        case Finished():
            state, seen = evidence.passed(state, incarnation, maxsize, now)
            state = changed(state, finishing=state.finishing or now)
            state, actions = verdicts.finished(state, incarnation, message)
            actions = [*seen, *actions]
            state, more = recovery.conclude(state, now) if not state.phase.ended else (state, [])
            return state, [*actions, *more]
        case FaultFired():
            return _fired(state, message)
        case Cadence(_, saved, reason):
            return changed(state, cadence={**state.cadence, saved: reason}), []
        case _:
            return state, [Record("unknown message", facts={"message": type(message).__name__})]


def _fired(state: State, message: FaultFired) -> Step:
    fired = f"{message.fault}: {message.evidence}"
    if fired in state.faults_fired:
        return state, []
    facts = {"fault": fired}
    return changed(state, faults_fired=(*state.faults_fired, fired)), [Record("fault fired", facts=facts)]


def _beat(state: State, incarnation: str, message: Heartbeat, now: float) -> Step:
    """A sign of life, with how far the rank is."""
    names = ("position", "stage", "computed", "busy", "held", "progress", "spent")
    told = {name: getattr(message, name) for name in names} | {"told_at": now}
    state = changed(state, ranks=state.heard(incarnation, now, **told))
    state, actions = records.heard(state, message)
    state, watched = sentinels.watch(state, state.ranks[incarnation].node, now)
    actions += watched
    if state.world is None or not state.is_member(incarnation):
        return state, actions
    if message.generation not in (None, state.world.generation):
        # Where it was before it heard of the newest generation says nothing of this one.
        return state, actions
    if message.stability is not None:
        state, seen = stability.heard(state, message.stability, state.world.generation, now)
        actions += seen
        if state.phase.ended:
            return state, actions
    state, more = verdicts.begun(state, incarnation, message.position, message.work)
    if not state.phase.ended:
        state, seen = evidence.passed(state, incarnation, message.position.step, now)
        state, change = membership.settle(state, now)
        more = [*more, *seen, *change]
    return state, [*actions, *more]


def _tick(state: State, asleep: float, now: float) -> Step:
    if asleep:
        state = _forgive(state, asleep, now)
    # The lease: a rank that hears nothing for its orphan time-out ends itself.
    state, actions = nodes.tick(state, now)
    actions += records.pings(state)
    if state.phase.ended:
        return state, actions
    state, more = hangs.look(state, now)
    actions += more
    for name, reason in _overdue(state, now):
        began = state.ranks[name].suspected or None
        state, told = hangs.shut_out(state, name, reason, now)
        state, more = verdicts.fence(state, name, reason, now)
        actions += [*told, *more]
        if state.world is None:
            state = seating.reseated(state)
        elif state.world.member(name) is not None:
            state, more = verdicts.succeed(state)
            actions += more
            if state.phase.ended:
                return state, actions
            cause = f"{state.ranks[name].title}: {reason}"
            state, more = recovery.begin(state, cause, now, began)
            actions += more
    state, more = verdicts.suspect(state, now)
    actions += more
    state, more = membership.try_open(state, now) if state.world is None else recovery.plan(state, now)
    actions += more
    if state.phase.ended:
        return state, actions
    for change in (stragglers.look, membership.refill, membership.settle):
        state, more = change(state, now)
        actions += more
    if state.finishing and now - state.finishing > state.settings.timeouts.finish:
        late = ", ".join(str(rank.seat) for rank in state.members if rank.finished is None)
        state, more = verdicts.fail(
            state, f"ranks {late} did not return from the training function after the last step"
        )
        actions += more
    return state, actions


def _forgive(state: State, asleep: float, now: float) -> State:
    """No deadline that ranks must keep has run while the controller could not hear them."""
    heard = forgive({rank.incarnation: rank.last_heard for rank in state.living}, asleep)
    for name, last_heard in heard.items():
        suspected = state.ranks[name].suspected + asleep
        state = state.rank(name, last_heard=min(now, last_heard), suspected=min(now, suspected))
    state = sentinels.forgiven(state, asleep, now)
    current = state.recovery
    if current is None:
        return state
    return changed(state, recovery=changed(current, prepared=min(now, current.prepared + asleep)))


def _overdue(state: State, now: float) -> list[tuple[str, str]]:
    """Ranks whose last chance to answer is over, and why."""
    timeouts = state.settings.timeouts
    overdue = [
        (
            rank.incarnation,
            f"no sign of life for {now - rank.last_heard:.1f} s, nor an answer to a probe"
            + sentinels.doing(state, rank),
        )
        for rank in state.living
        if rank.standing is Standing.SUSPECT and now - rank.suspected > timeouts.probe
    ]
    reason = f"no report within {timeouts.heartbeat:g} s of a recovery"
    overdue += [(name, reason) for name in recovery.overdue(state, now) if name not in dict(overdue)]
    overdue += [(name, reason) for name, reason in hangs.overdue(state, now) if name not in dict(overdue)]
    return overdue


def _after_the_end(state: State, event: Event) -> Step:
    if isinstance(event, Ended) and event.incarnation in state.ranks:
        return state.rank(event.incarnation, standing=Standing.GONE), []
    if isinstance(event, Heard) and state.phase is Phase.FAILED:
        return state, [Send(event.incarnation, Fenced(state.error or "the run is over"))]
    return state, []

"""Nothing moves although everybody lives: who holds up the others, and for how long that is borne.

Members tell with their heartbeats what their training threads are at, and sentinels what they see of those that say
nothing. Whoever is named is given the probe time, as a silent rank is: if it is still so then, it is shut out.
"""

from collections.abc import Mapping
from itertools import islice
from statistics import median

from ...monitors.consensus import Agree, Attributed, Verdict
from ...monitors.hang import judge
from ...monitors.progress import HALTED, LEAST, Limits, ProgressRecord, adapted, at_most
from ...policies.values import changed
from .events import Action, Record
from .findings import noted
from .state import Rank, State
from .watch import Standstill

Step = tuple[State, list[Action]]
# So many steps say what one takes.
_NEWEST = 100


def look(state: State, now: float) -> Step:
    """Note a standstill when there is one, and that it is over when it is."""
    old = state.standstill
    if old is None and not _still(state):
        return state, []
    place, verdict = _verdict(state)
    if isinstance(verdict, Agree):
        gone = old is not None and not all(name in state.present for name in old.ranks)
        over: list[Action] = [Record("moving again")] if old is not None and not gone else []
        return changed(state, standstill=None), over
    named = tuple(place[replica].incarnation for replica in verdict.ranks) if isinstance(verdict, Attributed) else ()
    if old is not None and old.ranks == named:
        return state, []
    facts = {"reason": verdict.reason, "ranks": [state.ranks[name].title for name in named]}
    seen = {place[replica].title: str(record) for replica, record in verdict.evidence.items()}
    state = changed(state, standstill=Standstill(verdict.reason, named, now, seen))
    if named:
        return state, [Record("standstill", facts=facts)]
    state, told = noted(state, now, "hang", "inconclusive", verdict.reason, evidence=seen, done="nothing")
    return state, [Record("standstill", facts=facts), *told]


def overdue(state: State, now: float) -> list[tuple[str, str]]:
    """Members that hold up the others and did not move in the probe time, or that of a step, either; and why."""
    held = state.standstill
    # Where all of a machine was halted, clocks have gone on: whoever computes needs the time of a microbatch to move.
    patience = max(state.settings.timeouts.probe, _step_seconds(state) or 0.0)
    if held is None or now - held.since <= patience:
        return []
    members = (state.ranks[name] for name in held.ranks if name in state.present)
    return [(rank.incarnation, held.reason.removeprefix(f"rank {_replica(rank)} ")) for rank in members]


def shut_out(state: State, name: str, reason: str, now: float) -> Step:
    """A member that held up the others is fenced: say so, if that was why."""
    held = state.standstill
    if held is None or name not in held.ranks:
        return state, []
    return noted(state, now, "hang", "attributed", reason, who=(name,), evidence=held.seen, done="it is shut out")


def _still(state: State) -> bool:
    """Whether any member stands still for so long that all should be looked at: they wait for each other."""
    least = state.settings.hang or LEAST.hang
    for name in islice(state.present, 1):
        record = _seen(state, state.ranks[name])
        return record is not None and record.unchanged > least
    return False


def _verdict(state: State) -> tuple[dict[int, Rank], Verdict]:
    """On the members, by replica; those of one coordinate wait for each other."""
    nobody = Agree({})
    if state.world is None or state.finishing or (state.recovery is not None and not state.recovery.opened):
        return {}, nobody
    members, limits = state.members, _limits(state)
    for coordinate in range(state.world.ranks_per_replica):
        peers = {_replica(rank): rank for rank in members if rank.seat and rank.seat.coordinate == coordinate}
        seen = {replica: record for replica, rank in peers.items() if (record := _seen(state, rank)) is not None}
        if len(seen) < len(peers):
            # Some have not told anything yet: a later look knows more.
            return {}, nobody
        verdict = judge(seen, limits)
        if isinstance(verdict, Attributed) and _outrun(state, peers, seen, verdict.ranks):
            # The others may only have told sooner that all go on.
            return {}, nobody
        if not isinstance(verdict, Agree):
            return peers, verdict
    return {}, nobody


def _outrun(
    state: State, peers: Mapping[int, Rank], seen: Mapping[int, ProgressRecord], named: tuple[int, ...]
) -> bool:
    """Whether others have moved since those who are named were seen where they are, or only just before."""
    if any(seen[rank].process in HALTED for rank in named):
        return False
    moved = [_told_at(state, peers[other]) - seen[other].unchanged for other in seen if other not in named]
    told = min(_told_at(state, peers[rank]) for rank in named)
    return bool(moved) and told - max(moved) < state.settings.timeouts.heartbeat_interval


def _told_at(state: State, rank: Rank) -> float:
    """When somebody last said what it is at: it, or its sentinel."""
    watch = state.watches.get(rank.node)
    outside = watch is not None and watch.up and rank.incarnation in watch.progress
    return max(rank.told_at, watch.last_heard if watch is not None and outside else 0.0)


def _limits(state: State) -> Limits:
    if state.settings.hang is not None:
        return at_most(state.settings.hang)
    return adapted(_step_seconds(state))


def _step_seconds(state: State) -> float | None:
    newest = [seconds for seconds, _, _ in state.pace[-_NEWEST:]]
    return median(newest) if newest else None


def _seen(state: State, rank: Rank) -> ProgressRecord | None:
    """What it tells of itself, or what its sentinel sees of it, whichever stands still for longer."""
    watch = state.watches.get(rank.node)
    from_outside = watch.progress.get(rank.incarnation) if watch is not None and watch.up else None
    told = [record for record in (rank.progress, from_outside) if record is not None]
    if from_outside is not None and rank.progress is not None and from_outside.reached != rank.progress.reached:
        # One of them is older; the one that is ahead is the newer one.
        return max(told, key=lambda record: record.reached)
    return max(told, key=lambda record: (record.unchanged, record.process), default=None)


def _replica(rank: Rank) -> int:
    assert rank.seat is not None, "members have seats"
    return rank.seat.replica

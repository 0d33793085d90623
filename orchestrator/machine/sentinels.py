"""Sentinels: on which node each one watches, when another is asked for, and what they say."""

from ...actors.messages import Fenced, Hello
from ...actors.node.sentinel_messages import FromSentinel, Guard, SentinelBeat, SentinelHello
from ...policies.values import changed
from .events import Action, Record, Send, StartSentinel, StopSentinel
from .state import Rank, State
from .watch import Watch

Step = tuple[State, list[Action]]
# What their names begin with; those of ranks begin with a number.
SENTINEL = "sentinel-"


def settled(state: State, message: Hello) -> Step:
    """A rank lives on a node: it is back if it was lost, and the sentinel there looks after this rank as well."""
    known = state.watches.get(message.node) or Watch()
    known = changed(known, lost=False, ranks=known.ranks.set(message.incarnation, message.pid))
    return watched(state, message.node, known), _guard(known)


def moved_out(state: State, rank: Rank, fell: float = 0.0) -> State:
    """A rank's process is gone; since ``fell`` if nobody wanted it to go."""
    known = state.watches.get(rank.node)
    if known is None or rank.incarnation not in known.ranks:
        return state
    fallen = known.fallen.set(rank.incarnation, fell) if fell else known.fallen
    return watched(state, rank.node, changed(known, ranks=known.ranks.delete(rank.incarnation), fallen=fallen))


def watch(state: State, node: str, now: float) -> Step:
    """A rank of this node is heard: have a sentinel there, if the cluster has more than one place for it."""
    known = state.watches.get(node)
    if not state.nodes or known is None or known.up:
        return state, []
    # One that has ended is asked for anew at once, but not again and again.
    patience = state.settings.timeouts.heartbeat if known.ended else state.settings.timeouts.start
    if known.serial and now - known.asked < patience:
        return state, []
    serial = known.serial + 1
    name = f"{SENTINEL}{node[:12]}-{state.settings.term}.{serial}"
    state = watched(state, node, Watch(name, serial, asked=now, ranks=known.ranks, fallen=known.fallen))
    return state, [Record("sentinel asked for", facts={"sentinel": name, "node": node}), StartSentinel(name, node)]


def heard(state: State, name: str, message: FromSentinel, now: float) -> Step:
    """A sentinel speaks, and so its node lives; one that was given up is told so."""
    node = message.node
    known = state.watches.get(node) or Watch()
    if state.phase.ended:
        return state, []
    if known.lost or (known.up and known.sentinel != name) or (isinstance(message, SentinelBeat) and not known.up):
        return state, [Send(name, Fenced("this sentinel was replaced, or its node was given up"))]
    if isinstance(message, SentinelHello):
        known = changed(known, sentinel=name, up=True, ended=0.0, suspected=0.0, last_heard=now)
        record = Record("sentinel up", facts={"sentinel": name, "node": node, "pid": message.pid})
        return watched(state, node, known), [record, *_guard(known)]
    return watched(
        state, node, changed(known, last_heard=now, suspected=0.0, seen=message.ranks, progress=message.progress)
    ), []


def give_up(state: State, node: str, now: float) -> Step:
    """A sentinel is stuck, and its node is not: another one is asked for when a rank there is heard."""
    known = state.watches[node]
    state = watched(state, node, changed(known, up=False, ended=now, suspected=0.0))
    facts = {"sentinel": known.sentinel, "node": node}
    told = Send(known.sentinel, Fenced("it gave no sign of life, and was replaced"))
    return state, [Record("sentinel given up", facts=facts), told, StopSentinel(known.sentinel)]


def forgiven(state: State, asleep: float, now: float) -> State:
    """No node was silent while the controller could not hear it."""
    for node, known in state.watches.items():
        if known.up:
            suspected = known.suspected and min(now, known.suspected + asleep)
            heard_at = min(now, known.last_heard + asleep)
            state = watched(state, node, changed(known, last_heard=heard_at, suspected=suspected))
    return state


def doing(state: State, rank: Rank) -> str:
    """What the sentinel of a silent rank says of its process, if that explains anything."""
    known = state.watches.get(rank.node)
    seen = known.seen.get(rank.incarnation, "") if known is not None and known.up else ""
    return f"; its process is {seen}" if seen in ("stopped", "traced", "waiting for a device") else ""


def watched(state: State, node: str, known: Watch) -> State:
    return changed(state, watches=state.watches.set(node, known))


def _guard(known: Watch) -> list[Action]:
    return [Send(known.sentinel, Guard(dict(sorted(known.ranks.items()))))] if known.up else []

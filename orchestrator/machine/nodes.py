"""Nodes: how the loss of one is told from that of a process, what it means, and how one is left.

A node lives while anybody who lives there is heard: its sentinel, or a rank. When a connection ends, that process is
gone; when those of the sentinel and of all ranks have ended together, the node is. A sentinel that is gone or stuck
while ranks of its node speak is replaced, and that is no loss.
"""

from ...actors.messages import Fenced, Ping, Release
from ...policies.values import changed
from . import membership, recovery
from .events import Action, Record, Send, StopSentinel
from .seating import reseated
from .sentinels import give_up, watched
from .state import Rank, State
from .verdicts import fence, succeed
from .watch import Watch

Step = tuple[State, list[Action]]


def ended(state: State, name: str, cause: str, now: float) -> Step:
    """A sentinel is gone."""
    node = next((node for node, known in state.watches.items() if known.sentinel == name and not known.ended), None)
    if node is None or state.phase.ended:
        return state, []
    state = watched(state, node, changed(state.watches[node], up=False, ended=now, suspected=0.0))
    state, actions = perhaps_lost(state, node, now)
    return state, [Record("sentinel gone", facts={"sentinel": name, "node": node, "cause": cause}), *actions]


def tick(state: State, now: float) -> Step:
    """Ask every sentinel for a sign of life, and see which node has given none."""
    timeouts = state.settings.timeouts
    up = sorted(((node, known) for node, known in state.watches.items() if known.up), key=lambda pair: pair[0])
    actions: list[Action] = [Send(known.sentinel, Ping()) for _, known in up]
    for node, known in up:
        there = [state.ranks[name] for name in known.ranks if state.ranks[name].standing.living]
        if not there and node in state.draining:
            state, more = _release(state, node)
            actions += more
            continue
        if now - known.last_heard <= timeouts.node:
            continue
        silent = now - max([known.last_heard, *(rank.last_heard for rank in there)])
        if silent <= timeouts.node:
            state = watched(state, node, changed(known, suspected=0.0))
            if now - known.last_heard > timeouts.heartbeat + timeouts.probe:
                state, more = give_up(state, node, now)
                actions += more
        elif not known.suspected:
            state = watched(state, node, changed(known, suspected=now))
            actions.append(Record("node suspected", facts={"node": node, "silent_s": silent}))
        elif now - known.suspected > timeouts.probe:
            state, more = lost(state, node, f"no sign of life for {silent:.1f} s, nor an answer to a probe", now)
            actions += more
        if state.phase.ended:
            break
    return state, actions


def lost(state: State, node: str, cause: str, now: float) -> Step:
    """Everybody who lived on a node is shut out, whatever is heard of it later."""
    there = [rank for rank in state.living if rank.node == node]
    known = state.watches.get(node) or Watch()
    if not there and (known.lost or node not in state.watches):
        # It is known, or nobody of this run has lived there.
        return state, []
    foreseen, said = node in state.draining, _said(state, node, cause)
    what = "node lost" if there or known.fallen or not foreseen else "node left"
    actions: list[Action] = [Record(what, facts={"node": node, "cause": cause})]
    if known.up:
        actions += [Send(known.sentinel, Fenced(said)), StopSentinel(known.sentinel)]
    state = watched(state, node, changed(known, up=False, ended=now, suspected=0.0, lost=True))
    hit = any(state.is_member(rank.incarnation) for rank in there)
    for rank in there:
        state, more = fence(state, rank.incarnation, said, now)
        # Nobody is left there who could confirm their ends.
        state = state.rank(rank.incarnation, fenced=now - state.settings.timeouts.confirm)
        actions += more
    if state.world is None:
        state, more = membership.try_open(reseated(state), now)
    elif hit:
        state, more = succeed(state)
        if not state.phase.ended:
            state, more = recovery.begin(recovery.explain(state, said), said, now)
    else:
        more = []
    state, asked = membership.refill(state, now)
    return state, [*actions, *more, *asked]


def drain(state: State, node: str, reason: str, now: float) -> Step:
    """Whoever lives on a node leaves it; a replica leaves as a whole. Others are asked for elsewhere."""
    if node in state.draining:
        return state, []
    state = changed(state, draining=state.draining | {node})
    record = Record("draining", facts={"node": node, "reason": reason})
    actions: list[Action] = []
    for rank in state.living:
        if rank.node == node and not state.is_member(rank.incarnation) and state.world is not None:
            state, more = membership.dismiss(state, rank.incarnation, f"its node is left: {reason}")
            actions += more
    held = state.world.members if state.world is not None else ()
    there = {member.seat.replica for member in held if member.node == node}
    state = membership.leave(state, lambda member: member.seat.replica in there)
    state, asked = membership.refill(state, now)
    state, more = membership.settle(state, now)
    return state, [record, *actions, *asked, *more]


def perhaps_lost(state: State, node: str, now: float) -> Step:
    """The processes of a node have ended, its sentinel's among them: if all of them have, and together, it is gone."""
    known, timeouts = state.watches.get(node), state.settings.timeouts
    if known is None or not known.ended or known.lost or now - known.ended > timeouts.node:
        return state, []
    if state.adoption is not None or state.phase.ended:
        return state, []
    if any(state.ranks[name].standing.living for name in known.ranks):
        return state, []
    together = [state.ranks[name] for name, at in sorted(known.fallen.items()) if now - at <= timeouts.node]
    if not together:
        return state, []
    cause = f"its sentinel and its ranks ended together: {', '.join(rank.title for rank in together)}"
    state, actions = lost(state, node, cause, now)
    return _renamed(state, together, _said(state, node, cause)), actions


def _said(state: State, node: str, cause: str) -> str:
    return f"node {node}: {cause}" + (" (foreseen: it was to be left)" if node in state.draining else "")


def _renamed(state: State, gone: list[Rank], cause: str) -> State:
    """What looked like the end of a rank was that of its node."""
    known = {f"{rank.title}: {rank.cause}" for rank in gone}
    if state.first_cause in known:
        state = changed(state, first_cause=cause)
    if state.recovery is not None and state.recovery.cause in known:
        state = changed(state, recovery=changed(state.recovery, cause=cause))
    return state


def _release(state: State, node: str) -> Step:
    """Nobody of the run is left on a node that was to be left: it may go."""
    known = state.watches[node]
    state = changed(state, watches=state.watches.delete(node))
    actions: list[Action] = [Send(known.sentinel, Release()), StopSentinel(known.sentinel)]
    return state, [Record("node is left", facts={"node": node}), *actions]

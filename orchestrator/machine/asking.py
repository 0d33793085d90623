"""Ranks that are asked for: in the place of those that are gone, and because more are wanted."""

from ...policies.placement import Spread
from ...policies.quarantine import NodeEvent
from ...policies.values import changed
from .events import Action, Record, StartRank
from .state import Rank, Standing, State

# A rank that ends before it has computed anything is asked for again after this long, then after twice as long, and so
# on; those that the run began with are not counted once they were ready.
_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0


def ask(state: State, now: float) -> tuple[State, list[Action]]:
    """Ask for as many ranks as are missing; nothing is asked for while the last ones failed to start."""
    if now < state.ask_after:
        return state, []
    settings = state.settings
    coming = sum(rank.standing.living and rank.incarnation not in state.leaving for rank in state.ranks.values())
    missing = state.target * settings.ranks_per_replica + settings.spares - coming
    if missing <= 0:
        return state, []
    avoid = avoided(state, now)
    actions: list[Action] = [Record("ranks asked for", facts={"ranks": missing, "avoided": sorted(avoid)})]
    for node in _places(state, missing, avoid):
        name = f"{state.serial:04d}-{settings.lives}"
        rank = Rank(name, asked=now, last_heard=now)
        ranks, asked = state.ranks.set(name, rank), state.coming.set(name, None)
        state = changed(state, serial=state.serial + 1, ranks=ranks, coming=asked)
        actions.append(StartRank(name, None, avoid, node))
    return state, actions


def _places(state: State, count: int, avoid: frozenset[str]) -> list[str | None]:
    """A node for each of so many ranks: away from each other and from those that are parked; None where any will do."""
    nodes = [node for node in state.nodes if node.name not in avoid]
    usable = {node.name for node in nodes}
    held = {name: state.ranks[name].node for name in state.parked if state.ranks[name].node in usable}
    members = [rank.node for rank in state.members if rank.node in usable] if nodes else []
    started = Spread(nodes).spares(members, len(held) + count, held).started
    return [*started, *[None] * (count - len(started))]


def avoided(state: State, now: float) -> frozenset[str]:
    """Nodes that are to be left, that are lost or slow, and those that are kept out since they fail again and again."""
    nodes = {rank.node for rank in state.ranks.values() if rank.node}
    kept_out = state.settings.quarantine.query(state.failures, nodes, now).excluded
    # Ray may take a node for a living one long after it was lost.
    lost = (node for node, known in state.watches.items() if known.lost)
    return state.draining.union(kept_out, lost, state.rounds.left)


def failed(state: State, rank: Rank, cause: str, now: float) -> State:
    """A rank was lost and nobody wanted it to go: its node is remembered, and a start that failed is not hurried."""
    before = state.failures.records.get(rank.node)
    # Whoever ends together on a node is one failure of it; none, if it was to be left.
    if rank.node and not (before and now - before.at <= state.settings.timeouts.node):
        event = NodeEvent(rank.node, f"{rank.title}: {cause}", planned=rank.node in state.draining)
        state = changed(state, failures=state.settings.quarantine.record(state.failures, event, now))
    fruitless = rank.standing is Standing.STARTING or (rank.asked > state.started and not rank.computed)
    if (state.world is None and state.resume is None) or not fruitless:
        return changed(state, aborted=0)
    pause = min(_LONGEST_PAUSE_S, _PAUSE_S * 2**state.aborted)
    return changed(state, aborted=state.aborted + 1, ask_after=now + pause)

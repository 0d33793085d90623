"""Where copies of snapshots and spares go. Pure and deterministic: nodes and what they hold in, places out.

A failure takes a node, a rack or a zone as a whole. Holders of the same thing are therefore spread over as many zones
as there are, within that over as many racks, within that over as many nodes; the rank that a copy is made of counts as
one of its holders. What is already placed stays unless it stands in the way of that, and new copies go where least is.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, takewhile

from ..conf.bounds import refuse_below

Domain = tuple[str, ...]
# A node is a domain, and so are its rack and its zone; from the widest to the narrowest.
_LEVELS = range(1, 4)


@dataclass(frozen=True)
class Node:
    """A node that lives.

    Attributes:
        name: its id.
        rack: label; nodes of a zone that say none are taken to share one.
        zone: label; nodes that say none are taken to share one.
        room: ranks that it can start beside those that live there.
    """

    name: str
    rack: str = ""
    zone: str = ""
    room: int = 0

    def __post_init__(self) -> None:
        refuse_below(0, **{f"room of node {self.name}": self.room})

    def domain(self, level: int) -> Domain:
        """The zone (1), the rack (2) or the node itself (3); racks of different zones are different."""
        return (self.zone, self.rack, self.name)[:level]


@dataclass(frozen=True)
class CopyPlacement:
    """Which nodes hold the copies of each shard.

    Attributes:
        copies: by shard, names of nodes, no node twice.
        made: (shard, node) of the copies that are not there yet.
        dropped: (shard, node) of the copies that are not wanted any more, or whose node is gone.
        reason: one line.
    """

    copies: Mapping[str, tuple[str, ...]]
    made: tuple[tuple[str, str], ...]
    dropped: tuple[tuple[str, str], ...]
    reason: str


@dataclass(frozen=True)
class SparePlacement:
    """Which nodes hold spares.

    Attributes:
        kept: by spare, its node.
        started: nodes on which to start one, a node as often as it gets one.
        released: spares that are too many, or whose node is gone.
        reason: one line.
    """

    kept: Mapping[str, str]
    started: tuple[str, ...]
    released: tuple[str, ...]
    reason: str


class Spread:
    """Spreads over failure domains first, then evenly, and moves as little as it can.

    Args:
        nodes: all that live and may hold something.

    Raises:
        ValueError: two nodes have the same name.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        ordered = sorted(nodes, key=lambda node: node.name)
        self._nodes = {node.name: node for node in ordered}
        if len(self._nodes) != len(ordered):
            doubled = sorted(name for name, count in Counter(node.name for node in ordered).items() if count > 1)
            raise ValueError(f"nodes {doubled} are named more than once")
        self._domains = {level: len({node.domain(level) for node in ordered}) for level in _LEVELS}

    def copies(
        self, owners: Mapping[str, str], copies: int, held: Mapping[str, Sequence[str]] | None = None
    ) -> CopyPlacement:
        """Places for the copies of every shard.

        Args:
            owners: by shard, the node of the rank that it is copied from; one that is not among the nodes counts for
                nothing.
            copies: how many copies each shard wants; no more than there are nodes are placed.
            held: by shard, nodes that hold a copy of it.
        """
        refuse_below(0, copies=copies)
        before = {shard: tuple(dict.fromkeys((held or {}).get(shard, ()))) for shard in sorted(owners)}
        loads = _Loads(self._nodes, (name for names in before.values() for name in names if name in self._nodes))
        placed: dict[str, tuple[str, ...]] = {}
        for shard, old in before.items():
            living = [name for name in old if name in self._nodes]
            loads.take(living)
            chosen = self._choose(owners[shard], min(copies, len(self._nodes)), living, loads)
            loads.give(chosen)
            placed[shard] = tuple(chosen)
        self._even_out(owners, placed, before, loads)
        old_pairs = {(shard, name) for shard, names in (held or {}).items() for name in names}
        new_pairs = {(shard, name) for shard, names in placed.items() for name in names}
        made, dropped = sorted(new_pairs - old_pairs), sorted(old_pairs - new_pairs)
        short = len(placed) * copies - len(new_pairs)
        reason = f"{len(new_pairs)} copies of {len(placed)} shards: {len(made)} to make, {len(dropped)} to drop"
        if short:
            reason += f"; {short} are missing, {len(self._nodes)} nodes cannot hold {copies} copies"
        return CopyPlacement(placed, tuple(made), tuple(dropped), reason)

    def spares(self, members: Sequence[str], wanted: int, held: Mapping[str, str] | None = None) -> SparePlacement:
        """Places for spares. Those that are parked stay; new ones go where there is room, away from each other.

        Args:
            members: the node of every member, as often as members live there.
            wanted: how many spares there should be.
            held: by spare, its node.
        """
        refuse_below(0, wanted=wanted)
        parked = dict(sorted((held or {}).items()))
        kept: dict[str, str] = {}
        used: list[Node] = []
        lives = {spare: name for spare, name in parked.items() if name in self._nodes}
        while lives and len(kept) < wanted:
            spare = min(lives, key=lambda one: (self._shared(self._nodes[lives[one]], used), one))
            used.append(self._nodes[lives[spare]])
            kept[spare] = lives.pop(spare)
        crowd = Counter(members)
        room = {name: node.room for name, node in self._nodes.items()}
        started: list[str] = []
        while len(kept) + len(started) < wanted and any(room.values()):
            node = min(
                (node for node in self._nodes.values() if room[node.name]),
                key=lambda node: (self._shared(node, used), crowd[node.name], node.name),
            )
            started.append(node.name)
            used.append(node)
            room[node.name] -= 1
        released = tuple(spare for spare in parked if spare not in kept)
        short = wanted - len(kept) - len(started)
        reason = f"{len(kept)} spares stay, {len(started)} to start, {len(released)} to release"
        return SparePlacement(kept, tuple(started), released, reason + (f"; no room for {short}" if short else ""))

    def _choose(self, owner: str, count: int, living: Sequence[str], loads: "_Loads") -> list[str]:
        """Holders of one shard: each new one in the widest domain that nobody uses yet; old ones before others."""
        used = [self._nodes[owner]] if owner in self._nodes else []
        chosen: list[str] = []
        preferred = sorted(living, key=loads.of)
        while len(chosen) < count:
            name = self._next(used, chosen, chain(preferred, loads.ascending()))
            chosen.append(name)
            used.append(self._nodes[name])
        return chosen

    def _next(self, used: Sequence[Node], chosen: Sequence[str], candidates: Iterable[str]) -> str:
        """The first candidate in the widest domain that nobody uses yet."""
        for level, count in zip(_LEVELS, _spread(used), strict=True):
            if count < self._domains[level]:
                taken = {node.domain(level) for node in used}
                return next(name for name in candidates if self._nodes[name].domain(level) not in taken)
        # With every node used, there is only the owner's own: better than none.
        return next(name for name in candidates if name not in chosen)

    def _even_out(
        self,
        owners: Mapping[str, str],
        placed: dict[str, tuple[str, ...]],
        before: Mapping[str, Sequence[str]],
        loads: "_Loads",
    ) -> None:
        """Move copies that are to be made anyway from full nodes to emptier ones, while that shares no more domains."""
        fresh = [(shard, name) for shard, names in placed.items() for name in names if name not in before[shard]]
        moved = True
        while moved:
            moved = False
            for place, (shard, name) in enumerate(fresh):
                better = self._better(owners[shard], placed[shard], name, loads)
                if better is not None:
                    placed[shard] = tuple(better if other == name else other for other in placed[shard])
                    loads.take([name])
                    loads.give([better])
                    fresh[place] = shard, better
                    moved = True

    def _better(self, owner: str, holders: Sequence[str], name: str, loads: "_Loads") -> str | None:
        """A node that holds at least two copies less than ``name`` and can take its place; None if there is none."""
        if name == owner:
            return None
        fixed = [self._nodes[other] for other in (owner, *holders) if other != name and other in self._nodes]
        spread = _spread([*fixed, self._nodes[name]])
        lighter = takewhile(lambda other: loads.of(other)[0] <= loads.of(name)[0] - 2, loads.ascending())
        fit = (other for other in lighter if other not in holders and _spread([*fixed, self._nodes[other]]) == spread)
        return next(fit, None)

    def _shared(self, node: Node, used: Sequence[Node]) -> tuple[int, ...]:
        """How many of ``used`` share its zone, its rack and the node itself."""
        return tuple(sum(node.domain(level) == other.domain(level) for other in used) for level in _LEVELS)


def _spread(used: Sequence[Node]) -> tuple[int, ...]:
    """How many zones, racks and nodes these are."""
    return tuple(len({node.domain(level) for node in used}) for level in _LEVELS)


class _Loads:
    """How many copies each node holds, and the nodes in that order."""

    def __init__(self, nodes: Iterable[str], held: Iterable[str]) -> None:
        counts = Counter(held)
        self._counts = {name: counts[name] for name in nodes}
        self._order = sorted((count, name) for name, count in self._counts.items())

    def of(self, name: str) -> tuple[int, str]:
        """A node's load, with its name to tell equals apart."""
        return self._counts[name], name

    def ascending(self) -> Iterator[str]:
        """Emptiest first."""
        return (name for _, name in self._order)

    def give(self, names: Iterable[str]) -> None:
        for name in names:
            self._change(name, 1)

    def take(self, names: Iterable[str]) -> None:
        for name in names:
            self._change(name, -1)

    def _change(self, name: str, by: int) -> None:
        self._order.pop(bisect_left(self._order, self.of(name)))
        self._counts[name] += by
        insort(self._order, self.of(name))

"""Which vault holds which part of which snapshot, and what is to be copied where. Pure: words in, orders out."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..actors.messages import Ping
from ..actors.node.vault_messages import (
    VAULT,
    Address,
    Commit,
    Copies,
    Forget,
    Manifest,
    Offered,
    Part,
    PartName,
    Pull,
    Pulled,
    ToVault,
    VaultHello,
    Withdraw,
)
from ..policies.placement import Node, Spread
from ..policies.world import Generation
from .machine.events import Lost, Saved, Warned

Snapshot = tuple[int, Generation]
# A part, and a vault that is to have it.
Pair = tuple[PartName, str]
_ATTEMPTS = 3


@dataclass(frozen=True)
class Tell:
    """Say something to a vault or to a rank."""

    incarnation: str
    message: ToVault | Withdraw | Ping


Order = Tell | Saved | Lost | Warned


@dataclass
class Holder:
    """A vault that has said what it holds."""

    incarnation: str
    node: str
    address: Address
    budget: int
    held: set[PartName] = field(default_factory=set)


class VaultCopies:
    """All snapshots of a run, whole or on their way.

    A snapshot is copied when every part of it is offered: what is torn never gets to a vault. They are copied one
    after the other, so that vaults hold one more than they keep at most.

    Args:
        copies: of each part.
        keep: whole snapshots that stay.

    Attributes:
        got_bytes: that vaults got from ranks and from each other, in ``got_seconds``.
    """

    def __init__(self, copies: int, keep: int) -> None:
        self._copies = copies
        self._keep = keep
        self.holders: dict[str, Holder] = {}
        self.nodes: dict[str, Node] = {}
        self.leaving: set[str] = set()
        self.manifests: dict[int, Manifest] = {}
        self._offers: dict[PartName, Offered] = {}
        self._owners: dict[PartName, str] = {}
        self._copying: dict[Snapshot, dict[int, Part]] = {}
        # Copies that are to be made; forgotten, and found anew, whenever other vaults can be had.
        self._missing: dict[Snapshot, set[Pair]] = {}
        self._under_way: set[Pair] = set()
        # Of which parts the first copy is under way, from their ranks.
        self._first: dict[PartName, str] = {}
        self._failed: dict[Pair, int] = {}
        self._floor: Generation | None = None
        self._undone: tuple[Generation, int] | None = None
        self._announced = 0
        self._unreadable: set[int] = set()
        self.got_bytes, self.got_seconds = 0, 0.0
        self._warned: set[str] = set()
        self._closed = False

    # --- what is heard

    def offered(self, message: Offered, node: str) -> list[Order]:
        """A rank on ``node`` has a part to give."""
        name = message.part.name
        if message.problem:
            return self._abandon(name.snapshot, f"the snapshot of step {name.step} is not taken: {message.problem}")
        if self._closed or self._refused(name):
            return [Tell(message.incarnation, Withdraw(None if self._closed else name))]
        self._offers[name], self._owners[name] = message, node
        parts = self._copying.setdefault(name.snapshot, {})
        parts[name.part] = message.part
        return self.plan() if _complete(parts) else []

    def pulled(self, message: Pulled) -> list[Order]:
        """A vault has a part, or could not get it."""
        name, vault = message.part.name, message.incarnation
        pair, orders = (name, vault), list[Order]()
        self._under_way.discard(pair)
        from_rank = self._first.get(name) == vault
        if from_rank:
            del self._first[name]
        if vault not in self.holders:
            return []
        if not message.problem:
            self.got_bytes += message.part.bytes
            self.got_seconds += message.seconds
            self.holders[vault].held.add(name)
            # The rank knows by itself that it has given it.
            self._offers.pop(name, None)
            self._missing.get(name.snapshot, set()).discard(pair)
        elif from_rank and not message.full:
            self._offers.pop(name, None)
        else:
            self._failed[pair] = _ATTEMPTS if message.full else self._failed.get(pair, 0) + 1
            self._missing.pop(name.snapshot, None)
        if message.full:
            node = self.holders[vault].node
            orders = self._warn("full", f"the vault of node {node} is full: {message.problem}")
        return [*orders, *self.plan()]

    def came(self, hello: VaultHello) -> list[Order]:
        """A vault is there, perhaps from an earlier controller's life, with all that it holds."""
        held = {part.name for part in hello.parts}
        self.holders[hello.incarnation] = Holder(hello.incarnation, hello.node, hello.address, hello.budget, held)
        for manifest in hello.manifests:
            self.manifests.setdefault(manifest.step, manifest)
        return self.replan()

    def gone(self, vaults: Iterable[str], why: str) -> list[Order]:
        """These are lost with all that they held: it is copied again from elsewhere."""
        lost = [name for name in vaults if self.holders.pop(name, None) is not None]
        if not lost:
            return []
        self._under_way = {pair for pair in self._under_way if pair[1] not in lost}
        self._first = {name: vault for name, vault in self._first.items() if vault not in lost}
        for step, manifest in list(self.manifests.items()):
            if not self.whole(manifest):
                del self.manifests[step]
        return [*self._news(why), *self.replan()]

    def rank_gone(self, incarnation: str) -> list[Order]:
        """What it offered and nobody has is lost."""
        self._offers = {name: held for name, held in self._offers.items() if held.incarnation != incarnation}
        return self.plan()

    def opened(self, generation: Generation, back_to: int | None) -> list[Order]:
        """A generation began. What was not whole on offer before will not be.

        Args:
            back_to: the step that everybody went back to: what was saved after it is undone.
        """
        self._floor = generation
        orders: list[Order] = []
        for snapshot, parts in list(self._copying.items()):
            if snapshot[1] < generation and not _complete(parts):
                orders += self._abandon(snapshot)
        if back_to is not None:
            self._undone = generation, back_to
            for snapshot in [each for each in self._copying if each[0] > back_to]:
                orders += self._abandon(snapshot)
            undone = [step for step in self.manifests if step > back_to]
            orders += self._forget(part.name for step in undone for part in self.manifests.pop(step).parts)
        return [*orders, *self._news(f"everybody went back to step {back_to}"), *self.plan()]

    def unreadable(self, step: int, problem: str) -> list[Order]:
        """A rank that is to go back to this step could get no copy of some part; every rank says so."""
        if step in self._unreadable:
            return []
        self._unreadable.add(step)
        manifest = self.manifests.pop(step, None)
        orders = self._forget(part.name for part in manifest.parts) if manifest else []
        older = max(
            (other for other, held in self.manifests.items() if other < step and self.whole(held)), default=None
        )
        self._announced = self.newest.step if self.newest else 0
        return [*orders, Lost(VAULT, step, older, problem)]

    def close(self) -> list[Order]:
        """Take nothing any more."""
        self._closed = True
        ranks = {held.incarnation for held in self._offers.values()}
        return [Tell(incarnation, Withdraw()) for incarnation in sorted(ranks)]

    # --- what is known

    def whole(self, manifest: Manifest) -> bool:
        """Whether there is a copy of every part."""
        return all(self._having(part.name) for part in manifest.parts)

    def where(self, step: int) -> tuple[Copies, ...]:
        """For ranks that go back to it: where every part is; nothing if it is not whole."""
        manifest = self.manifests.get(step)
        if manifest is None or not self.whole(manifest):
            return ()
        return tuple(
            Copies(part, tuple(self.holders[vault].address for vault in self._having(part.name)))
            for part in manifest.parts
        )

    @property
    def newest(self) -> Manifest | None:
        """Of all that are whole."""
        return next((held for _, held in sorted(self.manifests.items(), reverse=True) if self.whole(held)), None)

    @property
    def fewest(self) -> int:
        """Copies of that part of the newest snapshot of which there are least."""
        newest = self.newest
        return min((len(self._having(part.name)) for part in newest.parts), default=0) if newest else 0

    def idle(self, vault: str) -> bool:
        """Whether nothing would be lost with it."""
        parts = [part.name for held in self.manifests.values() for part in held.parts]
        return not any(self._having(name) == [vault] for name in parts)

    # --- what is to be done

    def replan(self) -> list[Order]:
        """Orders that are due since vaults came, left, or are to leave."""
        self._missing.clear()
        return self.plan()

    def plan(self) -> list[Order]:
        """Orders that are due now; each is given once."""
        orders: list[Order] = []
        for manifest in self.manifests.values():
            orders += self._copy((manifest.step, manifest.generation), manifest.parts)
        for snapshot in sorted(self._copying):
            if not _complete(self._copying[snapshot]):
                continue
            parts = tuple(part for _, part in sorted(self._copying[snapshot].items()))
            if any(self._source(part.name) is None for part in parts):
                # Its rank has died before a vault had it.
                orders += self._abandon(snapshot)
                continue
            orders += self._copy(snapshot, parts)
            if self._missing[snapshot] or not self.holders:
                break
            if all(self._having(part.name) for part in parts):
                orders += self._commit(snapshot, parts)
            else:
                orders += self._abandon(snapshot, f"no vault has room for the snapshot of step {snapshot[0]}")
        return [*orders, *self._news("it is not whole")]

    def _copy(self, snapshot: Snapshot, parts: Sequence[Part]) -> list[Order]:
        """Order copies: the first one of a part from its rank, the others from whoever has it then."""
        if snapshot not in self._missing:
            self._missing[snapshot] = self._wanted(parts)
        facts, orders = {part.name: part for part in parts}, list[Order]()
        for name, vault in sorted(self._missing[snapshot] - self._under_way):
            holders = self._having(name)
            source = self._source(name)
            if source is None or (not holders and name in self._first):
                continue
            if not holders:
                self._first[name] = vault
            self._under_way.add((name, vault))
            orders.append(Tell(vault, Pull(facts[name], source)))
        return orders

    def _wanted(self, parts: Sequence[Part]) -> set[Pair]:
        """Copies that are to be made, in as many failure domains as there are."""
        stay = {held.node: name for name, held in self.holders.items() if held.node not in self.leaving}
        there = stay or {held.node: name for name, held in self.holders.items()}
        spread = Spread(self.nodes.get(node, Node(node)) for node in there)
        named = {str(part.name): part.name for part in parts}
        held = {key: [self.holders[vault].node for vault in self._having(name)] for key, name in named.items()}
        owners = {key: self._owners.get(name, "") for key, name in named.items()}
        made = [(named[key], there[node]) for key, node in spread.copies(owners, self._copies, held).made]
        return {pair for pair in made if self._failed.get(pair, 0) < _ATTEMPTS}

    def _commit(self, snapshot: Snapshot, parts: Sequence[Part]) -> list[Order]:
        """Every part has its copies: now its manifest makes them a snapshot."""
        step, generation = snapshot
        del self._copying[snapshot]
        self._unreadable.discard(step)
        self.manifests[step] = Manifest(step, generation, tuple(parts), len(parts))
        self.manifests = dict(sorted(self.manifests.items())[-self._keep :])
        stay = {part.name for held in self.manifests.values() for part in held.parts}
        for holder in self.holders.values():
            holder.held = {name for name in holder.held if name in stay or name.step > step}
        self._owners = {name: node for name, node in self._owners.items() if name in stay or name.step > step}
        self._failed = {pair: count for pair, count in self._failed.items() if pair[0].step > step}
        self._missing = {each: pairs for each, pairs in self._missing.items() if each[0] in self.manifests}
        commit = Commit(tuple(self.manifests.values()))
        return [Tell(vault, commit) for vault in sorted(self.holders)]

    def _abandon(self, snapshot: Snapshot, why: str = "") -> list[Order]:
        """It will never be whole."""
        orders = self._warn("abandoned", why) if why else []
        self._missing.pop(snapshot, None)
        parts = self._copying.pop(snapshot, {}).values()
        for part in parts:
            offered = self._offers.pop(part.name, None)
            if offered is not None:
                orders.append(Tell(offered.incarnation, Withdraw(part.name)))
        return [*orders, *self._forget(part.name for part in parts)]

    def _forget(self, names: Iterable[PartName]) -> list[Order]:
        gone = tuple(names)
        if not gone:
            return []
        for holder in self.holders.values():
            holder.held.difference_update(gone)
        return [Tell(vault, Forget(gone)) for vault in sorted(self.holders)]

    def _news(self, why: str) -> list[Order]:
        """What the machine is to know: the newest that is whole."""
        newest = self.newest
        now, before = newest.step if newest else 0, self._announced
        self._announced = now
        if now > before:
            return [Saved(VAULT, now)]
        return [Lost(VAULT, before, now or None, why)] if now < before else []

    def _refused(self, name: PartName) -> bool:
        """Whether nobody can want this part any more."""
        if self._undone and name.generation < self._undone[0] and name.step > self._undone[1]:
            return True
        late = self._floor is not None and name.generation < self._floor and name.snapshot not in self._copying
        return late or name.step in self.manifests

    def _having(self, name: PartName) -> list[str]:
        return [vault for vault, holder in sorted(self.holders.items()) if name in holder.held]

    def _source(self, name: PartName) -> Address | None:
        """Where a part can be got: from a vault that has it, else from its rank."""
        holders = self._having(name)
        if holders:
            return self.holders[holders[0]].address
        return self._offers[name].address if name in self._offers else None

    def _warn(self, kind: str, text: str) -> list[Order]:
        """Once for each kind of trouble: it comes with every snapshot."""
        if kind in self._warned:
            return []
        self._warned.add(kind)
        return [Warned(text)]


def _complete(parts: Mapping[int, Part]) -> bool:
    """Whether all of them were offered."""
    return bool(parts) and len(parts) == next(iter(parts.values())).parts


def bytes_by_node(state: int, nodes: Iterable[str], copies: int, keep: int) -> Mapping[str, int]:
    """What snapshots need of each node: those that stay, and the one that is being made, divided evenly.

    Args:
        state: bytes of one.
    """
    there = tuple(nodes)
    share = -(-state * min(copies, max(1, len(there))) // max(1, len(there)))
    return dict.fromkeys(there, share * (keep + 1))

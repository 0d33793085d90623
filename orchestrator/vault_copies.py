"""Which part of which snapshot is to be copied from where to where. Pure: words in, orders out."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..actors.messages import Ping
from ..actors.node.vault_messages import (
    VAULT,
    Address,
    Commit,
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
from ..policies.retention import Undone
from ..policies.world import Generation
from .machine.events import Lost, Saved, Warned
from .vault_holdings import Holdings

Snapshot = tuple[int, Generation]
# A part, and a vault that is to have it.
Pair = tuple[PartName, str]
_ATTEMPTS = 3


@dataclass(frozen=True)
class Tell:
    """Say something to a vault or to a rank."""

    incarnation: str
    message: ToVault | Withdraw | Ping


@dataclass(frozen=True)
class KillVault:
    """End a vault: it does not answer, or is not needed any more."""

    incarnation: str


Order = Tell | KillVault | Saved | Lost | Warned


class VaultCopies:
    """Brings all snapshots of a run into vaults, and keeps their copies up.

    A snapshot is copied when every part of it is offered: what is torn never gets to a vault. They are copied one
    after the other, so that vaults hold one more than they keep at most.

    Args:
        copies: of each part.
        keep: whole snapshots that stay.

    Attributes:
        holdings: what is copied already.
        nodes: that live, with their failure domains.
        leaving: nodes that are drained.
        got_bytes: that vaults got from ranks and from each other, in ``got_seconds``.
    """

    def __init__(self, copies: int, keep: int) -> None:
        self._copies = copies
        self.holdings = Holdings(keep)
        self.nodes: dict[str, Node] = {}
        self.leaving: set[str] = set()
        self._offers: dict[PartName, Offered] = {}
        self._owners: dict[PartName, str] = {}
        self._copying: dict[Snapshot, dict[int, Part]] = {}
        # Copies that are to be made; forgotten, and found anew, whenever other vaults can be had.
        self._missing: dict[Snapshot, set[Pair]] = {}
        # With the vault that a copy is made from, if that is not its rank.
        self._under_way: dict[Pair, str | None] = {}
        self._failed: dict[Pair, int] = {}
        self._floor: Generation | None = None
        self._undone: Undone | None = None
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
        from_rank = pair in self._under_way and self._under_way.pop(pair) is None
        holder = self.holdings.holders.get(vault)
        if holder is None:
            return []
        if not message.problem:
            self.got_bytes += message.part.bytes
            self.got_seconds += message.seconds
            if name.snapshot in self._copying or self.holdings.needed(name):
                holder.held.add(name)
            # The rank knows by itself that it has given it.
            self._offers.pop(name, None)
            self._missing.get(name.snapshot, set()).discard(pair)
        elif from_rank and not message.full:
            self._offers.pop(name, None)
        else:
            self._failed[pair] = _ATTEMPTS if message.full else self._failed.get(pair, 0) + 1
            self._missing.pop(name.snapshot, None)
        if message.full:
            orders = self._warn("full", f"the vault of node {holder.node} is full: {message.problem}")
        return [*orders, *self.plan()]

    def came(self, hello: VaultHello) -> list[Order]:
        """A vault is there, perhaps from an earlier controller's life, with all that it holds."""
        manifests = tuple(each for each in hello.manifests if not self._is_undone(each.step, each.generation))
        self.holdings.come(replace(hello, manifests=manifests))
        for part in hello.parts:
            # An earlier life had begun to copy it, and its rank has nothing to offer any more.
            if not self._refused(part.name):
                self._copying.setdefault(part.name.snapshot, {})[part.name.part] = part
        # It may not have heard of it.
        undone = self._forget(part.name for part in hello.parts if self._is_undone(*part.name.snapshot))
        return [*undone, *self.replan()]

    def gone(self, vaults: Iterable[str], why: str) -> list[Order]:
        """These are lost with all that they held: it is copied again from elsewhere."""
        lost = self.holdings.lose(vaults)
        if not lost:
            return []
        self._under_way = {pair: source for pair, source in self._under_way.items() if pair[1] not in lost}
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
            self._undone = Undone(back_to, generation)
            for snapshot in [each for each in self._copying if each[0] > back_to]:
                orders += self._abandon(snapshot)
            manifests = self.holdings.manifests
            undone = [step for step in manifests if step > back_to]
            orders += self._forget(part.name for step in undone for part in manifests.pop(step).parts)
        return [*orders, *self._news(f"everybody went back to step {back_to}"), *self.plan()]

    def undo(self, undone: Undone | None) -> None:
        """Nothing has come yet: an earlier life may have died before vaults heard what they must forget."""
        self._undone = undone

    def unreadable(self, step: int, problem: str) -> list[Order]:
        """A rank that is to go back to this step could get no copy of some part; every rank says so."""
        if step in self._unreadable:
            return []
        self._unreadable.add(step)
        manifests = self.holdings.manifests
        manifest = manifests.pop(step, None)
        orders = self._forget(part.name for part in manifest.parts) if manifest else []
        whole = [other for other, held in manifests.items() if self.holdings.whole(held)]
        older = max((other for other in whole if other < step), default=None)
        self._announced = max(whole, default=0)
        return [*orders, Lost(VAULT, step, older, problem, tuple(sorted(whole)))]

    def close(self) -> list[Order]:
        """Take nothing any more."""
        self._closed = True
        ranks = {held.incarnation for held in self._offers.values()}
        return [Tell(incarnation, Withdraw()) for incarnation in sorted(ranks)]

    # --- what is to be done

    def replan(self) -> list[Order]:
        """Orders that are due since vaults came, left, or are to leave."""
        self._missing.clear()
        return self.plan()

    def plan(self) -> list[Order]:
        """Orders that are due now; each is given once."""
        orders: list[Order] = []
        for manifest in self.holdings.manifests.values():
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
            if self._missing[snapshot] or not self.holdings.holders:
                break
            if all(self.holdings.having(part.name) for part in parts):
                orders += self._commit(snapshot, parts)
            else:
                orders += self._abandon(snapshot, f"no vault has room for the snapshot of step {snapshot[0]}")
        return [*orders, *self._let_go(), *self._news("it is not whole")]

    def _copy(self, snapshot: Snapshot, parts: Sequence[Part]) -> list[Order]:
        """Order copies: the first one of a part from its rank, the others from whoever has it then."""
        if snapshot not in self._missing:
            self._missing[snapshot] = self._wanted(parts)
        facts, orders = {part.name: part for part in parts}, list[Order]()
        given = {name for (name, _), source in self._under_way.items() if source is None}
        for name, vault in sorted(self._missing[snapshot] - self._under_way.keys()):
            holders, address = self.holdings.having(name), self._source(name)
            if address is None or (not holders and name in given):
                continue
            if not holders:
                given.add(name)
            self._under_way[name, vault] = holders[0] if holders else None
            orders.append(Tell(vault, Pull(facts[name], address)))
        return orders

    def _let_go(self) -> list[Order]:
        """End vaults on nodes that are left, once all that they hold has its copies on those that stay."""
        holders, orders = self.holdings.holders, list[Order]()
        if all(holder.node in self.leaving for holder in holders.values()):
            return []
        for vault in sorted(name for name, holder in holders.items() if holder.node in self.leaving):
            busy = any(vault in (pair[1], source) for pair, source in self._under_way.items())
            unmoved = any(self._missing.get(name.snapshot, True) for name in holders[vault].held)
            sole = any(self.holdings.having(name) == [vault] for name in holders[vault].held)
            if not (busy or unmoved or sole):
                self.holdings.lose([vault])
                orders.append(KillVault(vault))
        return orders

    def _wanted(self, parts: Sequence[Part]) -> set[Pair]:
        """Copies that are to be made, in as many failure domains as there are."""
        holders = self.holdings.holders
        there = {holder.node: name for name, holder in holders.items()}
        there = {node: name for node, name in there.items() if node not in self.leaving} or there
        spread = Spread(self.nodes.get(node, Node(node)) for node in there)
        named = {str(part.name): part.name for part in parts}
        held = {key: [holders[vault].node for vault in self.holdings.having(name)] for key, name in named.items()}
        owners = {key: self._owners.get(name, "") for key, name in named.items()}
        made = [(named[key], there[node]) for key, node in spread.copies(owners, self._copies, held).made]
        return {pair for pair in made if self._failed.get(pair, 0) < _ATTEMPTS}

    def _commit(self, snapshot: Snapshot, parts: Sequence[Part]) -> list[Order]:
        """Every part has its copies: now its manifest makes them a snapshot."""
        step, generation = snapshot
        del self._copying[snapshot]
        self._unreadable.discard(step)
        self.holdings.commit(Manifest(step, generation, tuple(parts), len(parts)))
        manifests, stays = self.holdings.manifests, self.holdings.stays
        self._owners = {name: node for name, node in self._owners.items() if stays(name)}
        self._failed = {pair: count for pair, count in self._failed.items() if pair[0].step > step}
        self._missing = {each: pairs for each, pairs in self._missing.items() if each[0] in manifests}
        commit = Commit(tuple(manifests.values()))
        return [*(Tell(vault, commit) for vault in sorted(self.holdings.holders)), *self._outdated()]

    def _outdated(self) -> list[Order]:
        """Give up what is older than the newest that is whole."""
        old = [snapshot for snapshot in self._copying if snapshot[0] <= self.holdings.last]
        return [order for snapshot in old for order in self._abandon(snapshot)]

    def _abandon(self, snapshot: Snapshot, why: str = "") -> list[Order]:
        """It will never be whole."""
        orders = self._warn("abandoned", why) if why else []
        self._missing.pop(snapshot, None)
        parts = self._copying.pop(snapshot, {}).values()
        for part in parts:
            offered = self._offers.pop(part.name, None)
            if offered is not None:
                orders.append(Tell(offered.incarnation, Withdraw(part.name)))
        return [*orders, *self._forget(part.name for part in parts if not self.holdings.needed(part.name))]

    def _forget(self, names: Iterable[PartName]) -> list[Order]:
        gone = tuple(names)
        if not gone:
            return []
        self.holdings.forget(gone)
        return [Tell(vault, Forget(gone)) for vault in sorted(self.holdings.holders)]

    def _news(self, why: str) -> list[Order]:
        """What the machine is to know: the newest that is whole."""
        newest = self.holdings.newest
        now, before = newest.step if newest else 0, self._announced
        whole = tuple(step for step, held in self.holdings.manifests.items() if self.holdings.whole(held))
        self._announced = now
        if newest is not None and now > before:
            return [Saved(VAULT, now, whole, newest.generation)]
        return [Lost(VAULT, before, now or None, why, whole)] if now < before else []

    def _refused(self, name: PartName) -> bool:
        """Whether nobody can want this part any more."""
        late = self._floor is not None and name.generation < self._floor and name.snapshot not in self._copying
        return late or name.step <= self.holdings.last

    def _is_undone(self, step: int, generation: Generation) -> bool:
        """Whether everybody went back to before it since."""
        return self._undone is not None and self._undone.covers(step, generation)

    def _source(self, name: PartName) -> Address | None:
        """Where a part can be got: from a vault that has it, else from its rank."""
        holders = self.holdings.having(name)
        if holders:
            return self.holdings.holders[holders[0]].address
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
        keep: how many stay.
    """
    there = tuple(nodes)
    share = -(-state * min(copies, max(1, len(there))) // max(1, len(there)))
    return dict.fromkeys(there, share * (keep + 1))

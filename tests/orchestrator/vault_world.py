"""Vaults and ranks that behave, whose messages are on their way, beside the real thing that gives the orders."""

from dataclasses import dataclass, field
from typing import Any

from everstep.actors.node.vault import Vault
from everstep.actors.node.vault_messages import (
    Commit,
    Forget,
    Offered,
    Part,
    PartName,
    Pull,
    Pulled,
    VaultHello,
    Withdraw,
)
from everstep.conf.errors import VaultFullError
from everstep.orchestrator.machine.events import Lost, Saved
from everstep.orchestrator.vault_copies import KillVault, Order, Tell, VaultCopies
from everstep.policies.world import Generation

SIZE, KEEP = 10, 2


@dataclass
class World:
    """Ranks that offer, vaults that get, and all messages between them on their way.

    Attributes:
        offers: by address, what a rank has to give there.
        vaults: by name.
        mail: orders that have not come yet.
        saved: what the machine was told.
    """

    copies: VaultCopies
    nodes: tuple[str, ...]
    budget: int = 10**6
    generation: Generation = Generation(1, 1)
    step: int = 0
    lives: int = 0
    offers: dict[PartName, Offered] = field(default_factory=dict)
    vaults: dict[str, tuple[str, Vault]] = field(default_factory=dict)
    mail: list[Tell] = field(default_factory=list)
    saved: int = 0
    told: list[Order] = field(default_factory=list)

    def do(self, orders: list[Any]) -> None:
        for order in orders:
            match order:
                case Tell():
                    self.mail.append(order)
                case KillVault(name):
                    assert self.vaults[name][0] in self.copies.leaving
                    whole = self.whole()
                    del self.vaults[name]
                    self.mail = [held for held in self.mail if held.incarnation != name]
                    assert self.whole() == whole, "it was let go before others had what it held"
                    assert self.copies.gone([name], "it was let go") == []
                case Saved(_, step):
                    assert step > self.saved
                    self.saved = step
                case Lost(_, step, older, _):
                    assert step == self.saved
                    self.saved = older or 0
            self.told.append(order)

    def start(self, node: str) -> None:
        name = f"vault-{self.lives}"
        self.lives += 1
        self.vaults[name] = node, Vault(self.budget)
        self.do(self.copies.came(VaultHello(name, 1, node, (name, 0), self.budget)))

    def kill(self, name: str) -> None:
        if self.vaults.pop(name, None):
            self.mail = [order for order in self.mail if order.incarnation != name]
            self.do(self.copies.gone([name], "it died"))

    def leave(self, node: str) -> None:
        self.copies.leaving.add(node)
        self.do(self.copies.replan())

    def another_controller(self) -> None:
        """What the one before said last is heard first; what it had ordered goes on."""
        for place in [place for place, held in enumerate(self.mail) if not isinstance(held.message, Pull)][::-1]:
            order = self.mail.pop(place)
            self.mail.insert(0, order)
        while self.mail and not isinstance(self.mail[0].message, Pull):
            self.hear(self.mail.pop(0))
        leaving, self.saved = self.copies.leaving, 0
        self.copies = VaultCopies(self.copies._copies, KEEP)
        self.copies.leaving = leaving
        for name, (node, vault) in self.vaults.items():
            self.do(self.copies.came(VaultHello(name, 1, node, (name, 0), 1, vault.parts, vault.manifests)))
        for offered in list(self.offers.values()):
            self.do(self.copies.offered(offered, self.nodes[offered.part.name.part % len(self.nodes)]))

    def whole(self) -> list[int]:
        """Steps of snapshots of which every part is really there."""
        manifests = self.copies.holdings.manifests.items()
        return [step for step, held in manifests if all(self.holders(part.name) for part in held.parts)]

    def offer(self, ranks: int, only: int | None = None) -> None:
        """The state after one more step; of one part only, if the others die before they can offer theirs."""
        self.step += 1
        for place in range(ranks):
            if only in (None, place):
                part = Part(PartName(self.step, self.generation, place), ranks, SIZE, 0)
                offered = self.offers[part.name] = Offered(f"r{place}", part, ("rank", place))
                self.do(self.copies.offered(offered, self.nodes[place % len(self.nodes)]))

    def rank_dies(self, place: int) -> None:
        self.offers = {name: held for name, held in self.offers.items() if held.incarnation != f"r{place}"}
        self.do(self.copies.rank_gone(f"r{place}"))
        self.generation = self.generation.next()
        self.do(self.copies.opened(self.generation, None))

    def deliver(self, place: int) -> None:
        """One of the messages under way comes; to each vault they come in order."""
        first = {order.incarnation: order for order in reversed(self.mail)}
        order = list(first.values())[place % len(first)]
        self.mail.remove(order)
        self.hear(order)

    def hear(self, order: Tell) -> None:
        name, message = order.incarnation, order.message
        if isinstance(message, Withdraw):
            self.offers = {each: held for each, held in self.offers.items() if message.name not in (None, each)}
        elif name in self.vaults:
            _, vault = self.vaults[name]
            match message:
                case Pull(part, source):
                    self.do(self.copies.pulled(Pulled(name, part, 0.0, *self.pull(vault, part, source))))
                case Commit(manifests):
                    vault.commit(manifests)
                case Forget(names):
                    vault.forget(names)

    def pull(self, vault: Vault, part: Part, source: tuple[str, int]) -> tuple[str, bool]:
        try:
            if not vault.admit(part):
                return "", False
        except VaultFullError as error:
            return str(error), True
        if source[0] == "rank":
            there = self.offers.pop(part.name, None)
        else:
            there = self.vaults[source[0]][1].get(part.name) if source[0] in self.vaults else None
        if there is None:
            vault.fail(part.name)
            return "it is not there", False
        assert vault.put(part, "bytes")
        return "", False

    def settle(self) -> None:
        for _ in range(10_000):
            if not self.mail:
                return
            self.deliver(0)
        raise AssertionError("there is no end to it")

    def holders(self, name: PartName) -> set[str]:
        """Nodes that really have a part."""
        return {node for node, vault in self.vaults.values() if vault.get(name) is not None}


def world(nodes: str = "abc", copies: int = 2, budget: int = 10**6, vaults: bool = True) -> World:
    made = World(VaultCopies(copies, KEEP), tuple(nodes), budget)
    for node in nodes if vaults else ():
        made.start(node)
    return made


def assert_true(there: World) -> None:
    """What is said to be whole is, in parts of one step and one generation, and where it is said to be."""
    newest = there.copies.holdings.newest
    assert there.saved == (newest.step if newest else 0)
    for manifest in there.copies.holdings.manifests.values():
        assert {part.name.snapshot for part in manifest.parts} == {(manifest.step, manifest.generation)}
        assert [part.name.part for part in manifest.parts] == list(range(manifest.parts[0].parts))
        assert manifest.peers == len(manifest.parts)
        for copies in there.copies.holdings.where(manifest.step):
            said = {address[0] for address in copies.addresses}
            assert said <= there.vaults.keys()
            assert all(there.vaults[name][1].get(copies.part.name) is not None for name in said)

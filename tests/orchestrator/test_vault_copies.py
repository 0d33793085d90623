"""Which vault holds what: against vaults and ranks that behave, in any order, with any of them dying."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from everstep.actors.node.vault import Vault
from everstep.actors.node.vault_messages import (
    VAULT,
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
from everstep.orchestrator.machine.events import Lost, Saved, Warned
from everstep.orchestrator.vault_copies import KillVault, Order, Tell, VaultCopies
from everstep.policies.placement import Node
from everstep.policies.world import Generation
from hypothesis import given, settings
from hypothesis import strategies as st

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


def test_every_part_gets_its_copies_on_different_nodes_before_there_is_a_snapshot() -> None:
    there = world()
    there.offer(ranks=4)
    assert there.saved == 0
    there.settle()
    assert there.saved == 1
    (manifest,) = there.copies.holdings.manifests.values()
    assert all(len(there.holders(part.name)) == 2 for part in manifest.parts)
    assert not there.offers


def test_a_rank_gives_each_part_once_and_vaults_give_the_others() -> None:
    there = world(copies=3)
    there.offer(ranks=2)
    pulls = [order.message for order in there.mail if isinstance(order.message, Pull)]
    assert sorted(pull.part.name.part for pull in pulls) == [0, 1]
    there.settle()
    assert there.copies.holdings.fewest == 3


def test_the_newest_stay_and_older_ones_go_from_all_vaults() -> None:
    there = world()
    for _ in range(5):
        there.offer(ranks=3)
        there.settle()
    assert sorted(there.copies.holdings.manifests) == [4, 5]
    steps = {part.name.step for _, vault in there.vaults.values() for part in vault.parts}
    assert steps == {4, 5}
    assert all([held.step for held in vault.manifests] == [4, 5] for _, vault in there.vaults.values())


def test_what_is_lost_with_a_vault_is_copied_again() -> None:
    there = world()
    there.offer(ranks=4)
    there.settle()
    there.kill("vault-1")
    assert there.saved == 1
    there.settle()
    assert there.copies.holdings.fewest == 2
    assert_true(there)


def test_copies_go_to_other_zones() -> None:
    there = world("abcd", vaults=False)
    there.copies.nodes = {name: Node(name, zone="one" if name in "ab" else "two") for name in "abcd"}
    for node in "abcd":
        there.start(node)
    there.offer(ranks=4)
    there.settle()
    (manifest,) = there.copies.holdings.manifests.values()
    for part in manifest.parts:
        owner = there.nodes[part.name.part]
        zones = {there.copies.nodes[node].zone for node in there.holders(part.name) | {owner}}
        assert zones == {"one", "two"}


def test_all_copies_of_one_part_lost() -> None:
    """An older snapshot is the newest then, if it is whole; the machine hears of it."""
    there = world(copies=1)
    for _ in range(2):
        there.offer(ranks=1)
        there.settle()
    (part,) = there.copies.holdings.manifests[2].parts
    (node,) = there.holders(part.name)
    there.kill(next(name for name, (home, _) in there.vaults.items() if home == node))
    assert there.saved in (0, 1)
    lost = next(order for order in there.told if isinstance(order, Lost))
    assert (lost.source, lost.step) == (VAULT, 2)
    assert_true(there)


def test_a_snapshot_that_a_death_has_torn_does_not_stand_in_the_way() -> None:
    there = world()
    there.offer(ranks=3, only=1)
    there.rank_dies(0)
    there.settle()
    assert not there.offers, "its buffer is still held"
    there.offer(ranks=2)
    there.settle()
    assert there.saved == 2


def test_what_is_torn_without_a_death_is_given_up_when_a_newer_one_is_whole() -> None:
    there = world()
    there.offer(ranks=3, only=1)
    there.offer(ranks=3)
    there.settle()
    assert there.saved == 2
    assert not there.offers, "its buffer is still held"


def test_a_part_that_comes_when_its_snapshot_is_given_up_is_not_held() -> None:
    there = world()
    there.offer(ranks=2)
    pulled = [(order.incarnation, order.message.part) for order in there.mail if isinstance(order.message, Pull)]
    there.rank_dies(0)
    for name, part in pulled:
        there.do(there.copies.pulled(Pulled(name, part)))
    assert not any(holder.held for holder in there.copies.holdings.holders.values())


def test_what_was_undone_is_forgotten_and_refused_when_it_comes_late() -> None:
    there = world()
    for _ in range(3):
        there.offer(ranks=2)
        there.settle()
    old = there.generation
    there.generation = old.next()
    there.do(there.copies.opened(there.generation, 2))
    assert there.saved == 2
    there.settle()
    late = Part(PartName(4, old, 0), 1, SIZE, 0)
    there.do(there.copies.offered(Offered("r0", late, ("rank", 0)), "a"))
    assert there.mail == [Tell("r0", Withdraw(late.name))]
    there.settle()
    there.step = 2
    there.offer(ranks=2)
    there.settle()
    assert there.saved == 3
    assert there.copies.holdings.manifests[3].generation == there.generation
    assert_true(there)


def test_vaults_that_are_full_are_told_of_once_and_do_not_end_anything() -> None:
    there = world("ab", budget=2 * SIZE)
    for _ in range(4):
        there.offer(ranks=2)
        there.settle()
    warnings = [order.text for order in there.told if isinstance(order, Warned)]
    assert len(warnings) == 2
    assert "is full" in warnings[0]
    assert "no vault has room for the snapshot of step 2" in warnings[1]
    assert there.saved == 1
    assert not there.offers
    assert_true(there)


def test_a_node_that_leaves_gives_its_parts_to_others_first_and_then_its_vault_goes() -> None:
    there = world()
    there.offer(ranks=3)
    there.settle()
    there.leave("c")
    while "vault-2" in there.vaults:
        there.deliver(0)
    assert not any(isinstance(order.message, Pull) for order in there.mail)
    assert there.saved == 1
    assert there.copies.holdings.fewest == 2


def test_a_vault_that_holds_nothing_goes_at_once_and_one_that_nobody_can_follow_stays() -> None:
    there = world("ab", copies=1)
    there.leave("a")
    assert list(there.vaults) == ["vault-1"]
    there.offer(ranks=1)
    there.settle()
    there.leave("b")
    there.settle()
    assert there.saved == 1
    assert list(there.vaults) == ["vault-1"]
    there.start("c")
    there.settle()
    assert list(there.vaults) == ["vault-2"]
    assert there.saved == 1


def test_a_vault_does_not_go_while_others_are_full() -> None:
    there = world("ab", copies=2)
    there.offer(ranks=2)
    there.settle()
    there.kill("vault-1")
    there.budget = 0
    there.start("b")
    there.leave("a")
    there.settle()
    assert there.saved == 1
    assert sorted(there.vaults) == ["vault-0", "vault-2"]


def test_a_later_controller_goes_on_with_what_was_half_copied() -> None:
    """Ranks that have given their part do not offer it again."""
    there = world()
    there.offer(ranks=3)
    while there.offers:
        there.deliver(0)
    assert there.saved == 0
    there.another_controller()
    there.settle()
    assert there.saved == 1
    assert there.copies.holdings.fewest == 2


def test_a_vault_that_has_not_heard_of_it_comes_back_with_what_was_undone() -> None:
    there = world("a", copies=1)
    there.offer(ranks=1)
    there.offer(ranks=1)
    there.settle()
    assert there.saved == 2
    there.generation = there.generation.next()
    there.do(there.copies.opened(there.generation, 1))
    assert [order.message for order in there.mail] == [Forget((PartName(2, Generation(1, 1), 0),))]
    there.mail.clear()
    _, vault = there.vaults["vault-0"]
    there.do(there.copies.came(VaultHello("vault-0", 1, "a", ("vault-0", 0), 1, vault.parts, vault.manifests)))
    there.settle()
    assert there.saved == 1
    assert [part.name.step for part in vault.parts] == [1]


def test_a_later_controller_learns_from_vaults_what_there_is() -> None:
    there = world()
    there.offer(ranks=3)
    there.settle()
    later = VaultCopies(2, KEEP)
    told: list[Order] = []
    for name, (node, vault) in there.vaults.items():
        told += later.came(VaultHello(name, 1, node, (name, 0), 1, vault.parts, vault.manifests))
    assert [order for order in told if isinstance(order, Saved)] == [Saved(VAULT, 1)]
    assert len(later.holdings.where(1)) == 3


@pytest.mark.parametrize("known", [True, False])
def test_what_no_rank_can_read_is_lost_whether_it_was_known_of_or_not(known: bool) -> None:
    """A later controller may have been told by a journal of what vaults do not hold any more."""
    there = world()
    for _ in range(2):
        there.offer(ranks=2)
        there.settle()
    step = 2 if known else 3
    told = there.copies.unreadable(step, "it is gone")
    assert Lost(VAULT, step, 1 if known else 2, "it is gone") in told
    # Every rank says so.
    assert there.copies.unreadable(step, "it is gone") == []
    assert there.copies.holdings.where(2) == () if known else there.copies.holdings.where(2)


@pytest.mark.parametrize("before", [True, False])
def test_nobody_takes_anything_when_there_are_to_be_no_snapshots(before: bool) -> None:
    there = world("a", vaults=False)
    if before:
        there.offer(ranks=1)
    there.do(there.copies.close())
    if not before:
        there.offer(ranks=1)
    assert [order.message for order in there.mail] == [Withdraw()]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_whatever_happens_what_is_said_is_true_and_in_the_end_there_is_a_snapshot(data: st.DataObject) -> None:
    nodes = data.draw(st.sampled_from(["a", "ab", "abc", "abcd"]), label="nodes")
    copies = data.draw(st.integers(1, 3), label="copies")
    there, ranks = world(nodes, copies), data.draw(st.integers(1, 4), label="ranks")
    acts: dict[str, Callable[[], None]] = {
        "offer": lambda: there.offer(ranks),
        "tear": lambda: there.offer(ranks, data.draw(st.integers(0, ranks - 1))),
        "rank dies": lambda: there.rank_dies(data.draw(st.integers(0, ranks - 1))),
        "vault dies": lambda: there.kill(data.draw(st.sampled_from(sorted(there.vaults) or ["none"]))),
        "vault comes": lambda: there.start(data.draw(st.sampled_from(nodes))),
        "node is left": lambda: there.leave(data.draw(st.sampled_from(nodes))),
        "another controller": there.another_controller,
        "mail comes": lambda: there.deliver(data.draw(st.integers(0, 5))) if there.mail else None,
    }
    for act in data.draw(st.lists(st.sampled_from(sorted(acts)), max_size=40), label="acts"):
        acts[act]()
        assert_true(there)
    there.settle()
    # Whoever has come to a node that is left may be on another one of that name.
    there.copies.leaving.clear()
    for node in nodes:
        if node not in {home for home, _ in there.vaults.values()}:
            there.start(node)
    there.settle()
    there.rank_dies(0)
    there.settle()
    for _ in range(KEEP):
        there.offer(ranks)
        there.settle()
        assert_true(there)
    assert there.saved == there.step
    assert not there.offers
    assert there.copies.holdings.fewest >= min(copies, len(nodes))
    for name, (_, vault) in there.vaults.items():
        assert {part.name.step for part in vault.parts} <= {there.step, there.step - 1}
        assert there.copies.holdings.holders[name].held == {part.name for part in vault.parts}

"""Which vault holds what: against vaults and ranks that behave, in any order, with any of them dying."""

from collections.abc import Callable

import pytest
from everstep.actors.node.vault_messages import (
    VAULT,
    Forget,
    Offered,
    Part,
    PartName,
    Pull,
    Pulled,
    VaultHello,
    Withdraw,
)
from everstep.orchestrator.machine.events import Lost, Saved, Warned
from everstep.orchestrator.vault_copies import Order, Tell, VaultCopies
from everstep.policies.placement import Node
from everstep.policies.retention import Marks, Undone
from everstep.policies.world import Generation
from hypothesis import given, settings
from hypothesis import strategies as st

from .vault_world import KEEP, SIZE, assert_true, world


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


def test_a_later_controller_has_vaults_forget_what_the_last_one_could_not_tell_them_of() -> None:
    there = world("a", copies=1)
    there.offer(ranks=1)
    there.offer(ranks=1)
    there.settle()
    ((name, (node, vault)),) = there.vaults.items()
    later = VaultCopies(1, KEEP)
    later.undo(Undone(1, Generation(1, 2)))
    told = later.came(VaultHello(name, 1, node, (name, 0), 1, vault.parts, vault.manifests))
    assert [order for order in told if isinstance(order, Saved)] == [Saved(VAULT, 1, (1,), Generation(1, 1))]
    assert Tell(name, Forget((PartName(2, Generation(1, 1), 0),))) in told


def test_a_later_controller_learns_from_vaults_what_there_is() -> None:
    there = world()
    there.offer(ranks=3)
    there.settle()
    later = VaultCopies(2, KEEP)
    told: list[Order] = []
    for name, (node, vault) in there.vaults.items():
        told += later.came(VaultHello(name, 1, node, (name, 0), 1, vault.parts, vault.manifests))
    assert [order for order in told if isinstance(order, Saved)] == [Saved(VAULT, 1, (1,), Generation(1, 1))]
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
    assert Lost(VAULT, step, 1 if known else 2, "it is gone", (1,) if known else (1, 2)) in told
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


def test_what_is_known_to_be_right_stays_beside_the_newest() -> None:
    there = world()
    for step in range(1, 7):
        there.copies.holdings.marks = Marks((2,), ((3, 2),))
        there.offer(ranks=2)
        there.settle()
        assert_true(there)
        if step == 6:
            assert there.whole() == [2, 3, 5, 6]
    later = VaultCopies(2, KEEP)
    for name, (node, vault) in there.vaults.items():
        later.came(VaultHello(name, 1, node, (name, 0), 1, vault.parts, vault.manifests))
    assert sorted(later.holdings.manifests) == [2, 3, 5, 6]
    there.do(there.copies.opened(there.generation.next(), 2))
    there.settle()
    assert there.whole() == [2]
    assert all(part.name.step == 2 for _, vault in there.vaults.values() for part in vault.parts)

"""Copies and spares over failure domains: as far apart as can be, evenly, and with as few moves as possible."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import pytest
from everstep.policies.placement import CopyPlacement, Node, Spread
from hypothesis import given, settings
from hypothesis import strategies as st


def cluster(zones: int, racks: int, nodes: int, room: int = 0) -> list[Node]:
    """``zones`` zones of ``racks`` racks of ``nodes`` nodes; zone-rack-node are a node's name and labels."""
    return [
        Node(f"{zone}{rack}{node}", rack, zone, room)
        for zone in "abcdef"[:zones]
        for rack in "rst"[:racks]
        for node in "123456789"[:nodes]
    ]


def plain(count: int, room: int = 0) -> list[Node]:
    """Nodes without labels."""
    return [Node(f"n{place}", room=room) for place in range(count)]


def spread(nodes: Sequence[Node], holders: Sequence[str]) -> tuple[int, int, int]:
    """Zones, racks and nodes that these are."""
    used = [node for node in nodes if node.name in holders]
    return len({node.zone for node in used}), len({(node.zone, node.rack) for node in used}), len(used)


def loads(nodes: Sequence[Node], copies: Mapping[str, Sequence[str]]) -> dict[str, int]:
    counted = Counter(name for names in copies.values() for name in names)
    return {node.name: counted[node.name] for node in nodes}


@dataclass(frozen=True)
class Case:
    """What to place."""

    nodes: list[Node]
    owners: dict[str, str]
    copies: int
    held: dict[str, list[str]]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Small clusters with uneven labels; copies anywhere, also on nodes that are gone, also of shards that are gone."""
    labels = st.sampled_from(["", "p", "q", "r"])
    count = draw(st.integers(1, 6))
    nodes = [Node(f"n{place}", draw(labels), draw(labels)) for place in range(count)]
    anywhere = st.sampled_from([*(node.name for node in nodes), "gone", "lost"])
    shards = [f"s{place}" for place in range(draw(st.integers(0, 5)))]
    owners = {shard: draw(anywhere) for shard in shards}
    held = {shard: draw(st.lists(anywhere, max_size=4)) for shard in [*shards, "old"] if draw(st.booleans())}
    return Case(nodes, owners, draw(st.integers(0, 4)), held)


def placed(case: Case) -> CopyPlacement:
    return Spread(case.nodes).copies(case.owners, case.copies, case.held)


def best(case: Case, owner: str) -> tuple[tuple[int, int, int], list[tuple[str, ...]]]:
    """The widest spread that any choice of holders has, and all choices that have it."""
    count = min(case.copies, len(case.nodes))
    choices = list(combinations([node.name for node in case.nodes], count))
    widest = max(spread(case.nodes, (owner, *choice)) for choice in choices)
    return widest, [choice for choice in choices if spread(case.nodes, (owner, *choice)) == widest]


@given(cases())
def test_no_other_choice_shares_fewer_domains_or_moves_less(case: Case) -> None:
    decision = placed(case)
    assert set(decision.copies) == set(case.owners)
    for shard, owner in case.owners.items():
        chosen = decision.copies[shard]
        assert len(set(chosen)) == len(chosen) == min(case.copies, len(case.nodes))
        widest, choices = best(case, owner)
        assert spread(case.nodes, (owner, *chosen)) == widest
        held = set(case.held.get(shard, ()))
        assert len(held & set(chosen)) == max(len(held & set(choice)) for choice in choices)


@given(cases())
def test_what_is_made_and_dropped_is_the_difference(case: Case) -> None:
    decision = placed(case)
    before = {(shard, name) for shard, names in case.held.items() for name in names}
    after = {(shard, name) for shard, names in decision.copies.items() for name in names}
    assert (before | set(decision.made)) - set(decision.dropped) == after
    assert set(decision.made).isdisjoint(before)
    assert set(decision.dropped) <= before
    assert list(decision.made) == sorted(decision.made)
    assert list(decision.dropped) == sorted(decision.dropped)
    changes = f"{len(decision.made)} to make, {len(decision.dropped)} to drop"
    assert decision.reason.startswith(f"{len(after)} copies of {len(case.owners)} shards: {changes}")
    missing = len(case.owners) * max(0, case.copies - len(case.nodes))
    assert (f"; {missing} are missing, " in decision.reason) == (missing > 0)


@given(cases())
def test_a_placement_is_kept(case: Case) -> None:
    decision = placed(case)
    again = Spread(case.nodes).copies(case.owners, case.copies, decision.copies)
    assert {shard: set(names) for shard, names in again.copies.items()} == {
        shard: set(names) for shard, names in decision.copies.items()
    }
    assert (again.made, again.dropped) == ((), ())


@given(cases(), st.randoms())
def test_the_order_in_which_things_are_told_does_not_matter(case: Case, chance: object) -> None:
    def shuffled(items: Sequence) -> list:
        copy = list(items)
        chance.shuffle(copy)  # type: ignore[attr-defined]
        return copy

    other = Case(
        shuffled(case.nodes),
        dict(shuffled(list(case.owners.items()))),
        case.copies,
        {shard: shuffled(names) for shard, names in shuffled(list(case.held.items()))},
    )
    assert placed(other) == placed(case)


@given(cases())
def test_no_copy_that_is_made_would_be_better_off_on_an_emptier_node(case: Case) -> None:
    decision = placed(case)
    load = loads(case.nodes, decision.copies)
    for shard, name in decision.made:
        holders = [other for other in decision.copies[shard] if other != name]
        owner = case.owners[shard]
        for other in load:
            if other not in holders and load[other] <= load[name] - 2:
                assert spread(case.nodes, (owner, *holders, other)) < spread(case.nodes, (owner, *holders, name))


@settings(max_examples=50)
@given(cases(), st.data())
def test_when_a_node_is_gone_the_copies_of_others_stay(case: Case, data: st.DataObject) -> None:
    """Without labels nothing that lives has a reason to move, whoever else is gone."""
    bare = [Node(node.name) for node in case.nodes]
    before = Spread(bare).copies(case.owners, case.copies)
    lost = data.draw(st.sampled_from([node.name for node in bare]))
    left = [node for node in bare if node.name != lost]
    after = Spread(left).copies(case.owners, case.copies, before.copies)
    assert {name for _, name in after.dropped} <= {lost}


def test_copies_are_in_other_zones_while_there_are_some() -> None:
    nodes = cluster(zones=3, racks=2, nodes=2)
    owners = {f"s{place}": node.name for place, node in enumerate(nodes)}
    decision = Spread(nodes).copies(owners, 2)
    for shard, owner in owners.items():
        assert {name[0] for name in (owner, *decision.copies[shard])} == {"a", "b", "c"}
    assert set(loads(nodes, decision.copies).values()) == {2}
    assert decision.reason == "24 copies of 12 shards: 24 to make, 0 to drop"


def test_with_one_zone_they_are_in_other_racks_and_with_one_rack_on_other_nodes() -> None:
    racks = cluster(zones=1, racks=3, nodes=2)
    owners = {node.name: node.name for node in racks}
    for shard, names in Spread(racks).copies(owners, 2).copies.items():
        assert len({shard[1], *(name[1] for name in names)}) == 3
    nodes = plain(4)
    owners = {node.name: node.name for node in nodes}
    decision = Spread(nodes).copies(owners, 1)
    assert all(names != (shard,) for shard, names in decision.copies.items())
    assert set(loads(nodes, decision.copies).values()) == {1}


def test_racks_of_the_same_name_in_different_zones_are_different() -> None:
    nodes = [Node("a", "r1", "z1"), Node("b", "r1", "z2"), Node("c", "r2", "z1"), Node("d", "r2", "z2")]
    assert set(Spread(nodes).copies({"s": "a"}, 3).copies["s"]) == {"b", "c", "d"}


def test_a_single_node_holds_the_copy_itself() -> None:
    decision = Spread(plain(1)).copies({"s": "n0"}, 2)
    assert decision.copies == {"s": ("n0",)}
    assert decision.reason == "1 copies of 1 shards: 1 to make, 0 to drop; 1 are missing, 1 nodes cannot hold 2 copies"
    assert Spread([]).copies({"s": "n0"}, 1).copies == {"s": ()}


def test_three_nodes_that_copy_to_each_other_hold_one_copy_each() -> None:
    """The emptiest node first would give 2, 1 and 0."""
    nodes = plain(3)
    decision = Spread(nodes).copies({f"s{place}": f"n{place}" for place in range(3)}, 1)
    assert set(loads(nodes, decision.copies).values()) == {1}


def test_a_new_rack_is_used_though_everything_is_placed() -> None:
    nodes = [Node("a", "r1"), Node("b", "r1"), Node("c", "r1"), Node("d", "r2")]
    decision = Spread(nodes).copies({"s": "a"}, 2, {"s": ["b", "c"]})
    assert set(decision.copies["s"]) == {"b", "d"}
    assert (decision.made, decision.dropped) == ((("s", "d"),), (("s", "c"),))


def test_a_copy_leaves_the_node_to_which_its_rank_has_moved() -> None:
    decision = Spread(plain(3)).copies({"s": "n1"}, 1, {"s": ["n1"]})
    assert decision.made == (("s", decision.copies["s"][0]),)
    assert decision.copies["s"] != ("n1",)


def test_new_copies_go_where_least_is() -> None:
    nodes = plain(4)
    held = {"s0": ["n1"], "s1": ["n2"], "s2": ["n1"]}
    decision = Spread(nodes).copies({"s0": "n0", "s1": "n0", "s2": "n0", "s3": "n0"}, 1, held)
    assert decision.made == (("s3", "n3"),)


def test_a_thousand_nodes_are_placed_in_time() -> None:
    nodes = cluster(zones=6, racks=3, nodes=9)
    owners = {f"{node.name}-{place}": node.name for node in nodes for place in range(8)}
    decision = Spread(nodes).copies(owners, 2)
    load = loads(nodes, decision.copies).values()
    assert max(load) - min(load) <= 1


# --- spares


def test_spares_are_spread_over_zones_and_go_where_few_members_are() -> None:
    nodes = cluster(zones=3, racks=1, nodes=2, room=1)
    decision = Spread(nodes).spares(["ar1", "br1", "cr2"], 3)
    assert decision.started == ("ar2", "br2", "cr1")
    assert decision.reason == "0 spares stay, 3 to start, 0 to release"


def test_parked_spares_stay_and_the_next_one_keeps_away_from_them() -> None:
    nodes = cluster(zones=2, racks=1, nodes=2, room=2)
    decision = Spread(nodes).spares([], 2, {"one": "ar1"})
    assert decision.kept == {"one": "ar1"}
    assert decision.started == ("br1",)
    assert decision.released == ()


def test_a_spare_whose_node_is_gone_is_replaced() -> None:
    decision = Spread(plain(2, room=1)).spares([], 1, {"one": "gone"})
    assert (decision.kept, decision.started, decision.released) == ({}, ("n0",), ("one",))


def test_spares_that_are_too_many_are_released_where_they_stand_together() -> None:
    nodes = cluster(zones=2, racks=2, nodes=1)
    held = {"one": "ar1", "two": "ar1", "three": "as1", "four": "br1"}
    decision = Spread(nodes).spares([], 3, held)
    assert decision.kept == {"four": "br1", "one": "ar1", "three": "as1"}
    assert decision.released == ("two",)
    assert decision.reason == "3 spares stay, 0 to start, 1 to release"


def test_no_room_is_said() -> None:
    decision = Spread([Node("a", room=1), Node("b")]).spares([], 3)
    assert decision.started == ("a",)
    assert decision.reason == "0 spares stay, 1 to start, 0 to release; no room for 2"


@given(
    st.lists(st.tuples(st.sampled_from("pqr"), st.sampled_from("xy"), st.integers(0, 3)), min_size=1, max_size=6),
    st.lists(st.integers(0, 7), max_size=8),
    st.lists(st.integers(0, 7), max_size=5),
    st.integers(0, 6),
)
def test_spares_stay_and_no_zone_has_two_more_than_another_with_room(
    shapes: list[tuple[str, str, int]], members: list[int], held: list[int], wanted: int
) -> None:
    nodes = [Node(f"n{place}", rack, zone, room) for place, (zone, rack, room) in enumerate(shapes)]
    names = {node.name: node for node in nodes}
    parked = {f"spare-{place}": f"n{at}" for place, at in enumerate(held)}
    alive = {spare: at for spare, at in parked.items() if at in names}
    policy = Spread(nodes)
    decision = policy.spares([f"n{at}" for at in members], wanted, parked)
    assert decision.kept.items() <= alive.items()
    assert len(decision.kept) == min(wanted, len(alive))
    assert set(decision.released) == set(parked) - set(decision.kept)
    free = sum(node.room for node in nodes)
    assert len(decision.started) == min(free, wanted - len(decision.kept))
    started = Counter(decision.started)
    assert all(count <= names[at].room for at, count in started.items())
    zones = Counter(names[at].zone for at in [*decision.kept.values(), *decision.started])
    for at in started:
        for node in nodes:
            if node.room > started[node.name]:
                assert zones[names[at].zone] <= zones[node.zone] + 1
    later = {**decision.kept, **{f"new-{place}": at for place, at in enumerate(decision.started)}}
    assert policy.spares([], len(later), later).kept == later


# --- what is refused


def test_what_cannot_be_is_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match=r"^nodes \['a'\] are named more than once$"):
        Spread([Node("a"), Node("b"), Node("a", "r")])
    with pytest.raises(ValueError, match=r"^room of node a=-1 must be a finite number of at least 0$"):
        Node("a", room=-1)
    with pytest.raises(ValueError, match="copies=-1 must be"):
        Spread([]).copies({}, -1)
    with pytest.raises(ValueError, match="wanted=-1 must be"):
        Spread([]).spares([], -1)

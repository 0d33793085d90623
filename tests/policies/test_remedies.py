"""What a loss allows: nothing that leaves too few, nothing without state, and everything else."""

from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from everstep.policies.remedies import LossFacts, Option, Remedy, describe, possible
from hypothesis import given
from hypothesis import strategies as st

from .losses import loss, losses

LIVE = {Remedy.SWAP, Remedy.COMPLETE, Remedy.SHRINK}
RESTORES = {Remedy.RESTORE_VAULT, Remedy.RESTORE_STORAGE}
patiences = st.sampled_from([0.0, 100.0, 1000.0])


def gap(*coordinates: int) -> frozenset[int]:
    return frozenset(coordinates)


@pytest.mark.parametrize(
    ("facts", "options"),
    [
        # One of four is lost, R = 1.
        (loss(), {Remedy.SHRINK: Option(3)}),
        (loss(spares=1), {Remedy.SWAP: Option(4, 1, 1), Remedy.SHRINK: Option(3)}),
        (loss(spares=5), {Remedy.SWAP: Option(4, 1, 1), Remedy.SHRINK: Option(3)}),
        (loss(survivors=1, spares=2), {Remedy.SWAP: Option(3, 2, 2), Remedy.SHRINK: Option(1)}),
        (loss(survivors=1, spares=2, minimum=2), {Remedy.SWAP: Option(3, 2, 2)}),
        (loss(survivors=1, minimum=2), {Remedy.WAIT: Option(2, 0, 1, 1)}),
        (loss(survivors=1, minimum=2, waited=60.0), {}),
        # Room to start ranks shortens the wait, and is no reason to throw living state away.
        (loss(survivors=1, minimum=2, room=3, vault_step=99), {Remedy.WAIT: Option(2, 0, 1, 1)}),
        (
            loss(vault_step=99, storage_step=90),
            {
                Remedy.SHRINK: Option(3),
                Remedy.RESTORE_VAULT: Option(3, source=Remedy.RESTORE_VAULT, back=1),
                Remedy.RESTORE_STORAGE: Option(3, source=Remedy.RESTORE_STORAGE, back=10),
            },
        ),
        # Nobody is lost.
        (loss(survivors=4, vault_step=100), {Remedy.REFORM: Option(4)}),
        (loss(survivors=4, minimum=4), {Remedy.REFORM: Option(4)}),
        (loss(survivors=4, minimum=5), {Remedy.WAIT: Option(5, 0, 1, 1)}),
        # All are lost.
        (loss(survivors=0), {}),
        (loss(survivors=0, spares=4, room=4), {}),
        (
            loss(survivors=0, spares=2, storage_step=90),
            {Remedy.RESTORE_STORAGE: Option(2, 2, source=Remedy.RESTORE_STORAGE, back=10)},
        ),
        (
            loss(survivors=0, minimum=2, spares=1, room=1, vault_step=97),
            {Remedy.RESTORE_VAULT: Option(2, 1, fresh=1, source=Remedy.RESTORE_VAULT, back=3)},
        ),
        (
            loss(survivors=0, room=9, vault_step=97),
            {Remedy.RESTORE_VAULT: Option(4, fresh=4, source=Remedy.RESTORE_VAULT, back=3)},
        ),
        (
            loss(survivors=0, minimum=2, room=1, vault_step=90, storage_step=95),
            {Remedy.WAIT: Option(2, fresh=2, source=Remedy.RESTORE_STORAGE, back=5)},
        ),
        # Two of three replicas of two ranks are broken at different places: one completes the other, with its state.
        (
            loss(3, 1, ranks_per_replica=2, broken=(gap(0), gap(1))),
            {Remedy.COMPLETE: Option(2, 1, 0), Remedy.SHRINK: Option(1)},
        ),
        # At the same place: the orphan must be given the other coordinate's state.
        (
            loss(3, 1, ranks_per_replica=2, broken=(gap(1), gap(1))),
            {Remedy.COMPLETE: Option(2, 1, 1), Remedy.SHRINK: Option(1)},
        ),
        (
            loss(3, 1, ranks_per_replica=2, broken=(gap(0), gap(1)), spares=1),
            {Remedy.SWAP: Option(2, 1, 1), Remedy.COMPLETE: Option(2, 1, 0), Remedy.SHRINK: Option(1)},
        ),
        # With two spares both are completed, and no orphan is left to give.
        (
            loss(3, 1, ranks_per_replica=2, broken=(gap(0), gap(1)), spares=2),
            {Remedy.SWAP: Option(3, 2, 1), Remedy.SHRINK: Option(1)},
        ),
        # Two newcomers at one coordinate, one at another: in two rounds all are fed.
        (
            loss(4, 1, ranks_per_replica=3, broken=(gap(0), gap(0), gap(1)), spares=3),
            {Remedy.SWAP: Option(4, 3, 2), Remedy.SHRINK: Option(1)},
        ),
        # Between them they hold everything, though no replica is whole.
        (loss(2, 0, ranks_per_replica=2, broken=(gap(0), gap(1))), {Remedy.COMPLETE: Option(1, 1, 0)}),
        # Nobody holds coordinate 1.
        (loss(2, 0, ranks_per_replica=2, broken=(gap(1), gap(1))), {}),
        (
            loss(2, 0, ranks_per_replica=2, broken=(gap(1), gap(1)), vault_step=100),
            {Remedy.RESTORE_VAULT: Option(1, 1, source=Remedy.RESTORE_VAULT, back=0)},
        ),
        # Those that lack least are completed first.
        (
            loss(3, 1, ranks_per_replica=4, broken=(gap(0, 1, 2), gap(3)), spares=1),
            {Remedy.SWAP: Option(2, 1, 1), Remedy.COMPLETE: Option(2, 1, 0), Remedy.SHRINK: Option(1)},
        ),
    ],
)
def test_what_a_loss_allows(facts: LossFacts, options: dict[Remedy, Option]) -> None:
    assert possible(facts, patience=60.0) == options


def ranks_that_live(facts: LossFacts) -> list[set[int]]:
    """By lost replica, the coordinates that live."""
    everything = set(range(facts.ranks_per_replica))
    return [everything - gap for gap in facts.broken] + [set()] * (facts.lost - len(facts.broken))


@given(losses())
def test_hands_and_state_are_what_a_count_of_ranks_says(facts: LossFacts) -> None:
    living = ranks_that_live(facts)
    size = facts.ranks_per_replica
    most = max(
        chosen
        for chosen in range(facts.lost + 1)
        for kept in combinations(range(facts.lost), chosen)
        if sum(size - len(living[place]) for place in kept)
        <= facts.spares + sum(len(living[place]) for place in range(facts.lost) if place not in kept)
    )
    assert facts.hands == facts.survivors + most
    assert facts.state_lives == (facts.survivors > 0 or set().union(*living) == set(range(size)))


@given(losses())
def test_spares_complete_as_many_as_they_can(facts: LossFacts) -> None:
    lacks = [facts.ranks_per_replica - len(held) for held in ranks_that_live(facts)]
    most = max(
        chosen for chosen in range(facts.lost + 1) for kept in combinations(lacks, chosen) if sum(kept) <= facts.spares
    )
    swap = possible(facts, 0.0).get(Remedy.SWAP)
    expected = facts.state_lives and most > 0 and facts.survivors + most >= facts.minimum
    assert (swap is not None) == expected
    if swap is not None:
        assert (swap.world, swap.completed) == (facts.survivors + most, most)
        assert 1 <= swap.transfers <= most


@given(losses(), patiences)
def test_no_remedy_is_without_state_or_leaves_too_few(facts: LossFacts, patience: float) -> None:
    options = possible(facts, patience)
    for remedy, option in options.items():
        assert facts.minimum <= option.world <= max(facts.members, facts.minimum)
        assert (option.source is None) == (option.back is None)
        if option.source is None:
            assert facts.state_lives
        else:
            saved = {Remedy.RESTORE_VAULT: facts.vault_step, Remedy.RESTORE_STORAGE: facts.storage_step}
            assert facts.step - (option.back or 0) == saved[option.source]
        if remedy in LIVE | {Remedy.REFORM}:
            assert option.fresh == 0
            assert option.world <= facts.hands
        if remedy in RESTORES:
            assert option.source is remedy
            assert 0 <= option.fresh <= facts.room
            assert option.world == facts.hands + option.fresh
        if remedy is Remedy.WAIT:
            assert option.world == facts.minimum == facts.hands + option.fresh
            assert option.fresh > 0
            assert not (option.back and facts.state_lives)


@given(losses(), patiences)
def test_training_ends_only_without_state_or_without_hands(facts: LossFacts, patience: float) -> None:
    options = possible(facts, patience)
    saved = facts.vault_step is not None or facts.storage_step is not None
    if facts.lost == 0 and facts.survivors >= facts.minimum:
        assert set(options) == {Remedy.REFORM}
        return
    assert Remedy.REFORM not in options
    enough = facts.hands >= facts.minimum
    assert bool(set(options) & LIVE) == (facts.state_lives and enough)
    startable = not facts.state_lives and facts.hands + facts.room >= facts.minimum
    assert bool(set(options) & RESTORES) == (saved and (enough or startable))
    waits = not set(options) - {Remedy.WAIT} and (facts.state_lives or saved) and facts.waited < patience
    assert (Remedy.WAIT in options) == waits


@given(losses())
def test_the_more_is_used_the_more_go_on(facts: LossFacts) -> None:
    options = possible(facts, 0.0)
    worlds = [options[remedy].world for remedy in (Remedy.SHRINK, Remedy.SWAP, Remedy.COMPLETE) if remedy in options]
    assert worlds == sorted(worlds)
    more = possible(replace(facts, spares=facts.spares + facts.ranks_per_replica), 0.0)
    assert set(options) - {Remedy.COMPLETE} <= set(more)
    if worlds:
        assert max(option.world for option in more.values()) >= min(facts.members, max(worlds) + 1)


@given(losses(), patiences)
def test_the_newest_state_comes_first(facts: LossFacts, patience: float) -> None:
    back = [option.back for remedy, option in possible(facts, patience).items() if remedy in RESTORES]
    assert back == sorted(back)  # type: ignore[type-var]


def test_of_two_states_of_one_step_the_vaults_come_first() -> None:
    options = possible(loss(survivors=0, room=4, vault_step=90, storage_step=90), 0.0)
    assert list(options) == [Remedy.RESTORE_VAULT, Remedy.RESTORE_STORAGE]


@pytest.mark.parametrize(
    ("facts", "remedy", "text"),
    [
        (loss(survivors=4), Remedy.REFORM, "nobody is lost: the same members form a new group"),
        (loss(), Remedy.SHRINK, "3 of 4 replicas go on"),
        (loss(spares=1), Remedy.SWAP, "4 of 4 replicas go on, 1 of them completed by spares"),
        (
            loss(3, 1, ranks_per_replica=2, broken=(gap(0), gap(1))),
            Remedy.COMPLETE,
            "2 of 3 replicas go on, 1 of them completed by orphans of other replicas",
        ),
        (
            loss(survivors=1, minimum=3),
            Remedy.WAIT,
            "1 of 4 replicas are left, the minimum is 3: waiting for 2 more",
        ),
        (loss(vault_step=98), Remedy.RESTORE_VAULT, "restore from vault, 2 steps back: 3 of 4 replicas go on"),
        (
            loss(survivors=0, room=4, storage_step=0),
            Remedy.RESTORE_STORAGE,
            "restore from storage, 100 steps back: 4 of 4 replicas go on, 4 of them started anew",
        ),
    ],
)
def test_a_remedy_is_described_in_one_line(facts: LossFacts, remedy: Remedy, text: str) -> None:
    assert describe(facts, remedy, possible(facts, 1.0)[remedy]) == text


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({"members": 0, "survivors": 0}, "members=0 must be a finite number of at least 1"),
        ({"minimum": 0}, "minimum=0"),
        ({"ranks_per_replica": 0}, "ranks_per_replica=0"),
        ({"microbatches": 0}, "microbatches=0"),
        ({"survivors": -1}, "survivors=-1 must be a finite number of at least 0"),
        ({"spares": -1}, "spares=-1"),
        ({"room": -1}, "room=-1"),
        ({"replacement_rate": float("inf")}, "replacement_rate=inf"),
        ({"replacement_rate": -1.0}, "replacement_rate=-1.0"),
        ({"waited": float("nan")}, "waited=nan"),
        ({"step": -1}, "step=-1"),
        ({"remaining_steps": -1}, "remaining_steps=-1"),
        ({"lost_microbatches": -1}, "lost_microbatches=-1"),
        ({"state_bytes": -1}, "state_bytes=-1"),
        ({"survivors": 5}, "5 whole and 0 broken replicas are more than the 4 before"),
        ({"ranks_per_replica": 2, "broken": (gap(0), gap(1))}, "3 whole and 2 broken replicas are more than the 4"),
        ({"broken": (gap(0),)}, "broken=[[0]] must be some, but not all, of 1 coordinates each"),
        ({"ranks_per_replica": 2, "broken": (gap(),)}, "broken=[[]] must be some"),
        ({"ranks_per_replica": 2, "broken": (gap(2),)}, "broken=[[2]] must be some"),
        ({"lost_microbatches": 9}, "9 of 8 microbatches cannot be lost"),
        ({"vault_step": 101}, "vault_step=101 must be a step that was committed, of 100"),
        ({"storage_step": -1}, "storage_step=-1"),
    ],
)
def test_facts_that_contradict_each_other_are_refused(facts: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=r"must|cannot|more than") as refused:
        loss(**facts)
    assert text in str(refused.value)
    assert "\n" not in str(refused.value)

"""Worlds that change: newcomers, leavers, shadows, restores, and controllers that take over."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from everstep.actors.messages import Open, Serving
from everstep.actors.rank.transaction import ProtocolError, Share, Transaction
from everstep.policies.workload import AdaptiveWorld, Balanced, Versatile, Weighted
from everstep.policies.world import Position, Work, WorkKind
from hypothesis import given
from hypothesis import strategies as st

from .transactions import (
    EVALUATION,
    LATER,
    ME,
    OTHER,
    PEER,
    START,
    STORE,
    VAULT,
    WORK,
    again,
    folded,
    generation,
    opened,
    opening,
    world_of,
)

# --- shadows

REPEATING = {"shadows": {ME: OTHER}}


def test_a_shadow_is_told_whose_indices_it_computes() -> None:
    transaction = opened((4, 5), **REPEATING)
    assert (transaction.repeats, transaction.indices, transaction.owed) == (2, (4, 5), (4, 5))
    assert transaction.abandon(generation(1)).report().repeats == 2
    assert opened((4, 5)).abandon(generation(1)).report().repeats is None


def test_a_shadow_owes_the_vote_nothing() -> None:
    transaction = folded(opened((4, 5), **REPEATING), 4)
    assert (transaction.owed, transaction.due) == ((5,), ())
    assert transaction.enter(generation(1)).entered == generation(1)
    mine = folded(opened((4, 5)), 4)
    assert mine.due == (5,)
    with pytest.raises(ProtocolError, match=r"while \(5,\) are owed"):
        mine.enter(generation(1))


def test_a_promoted_shadow_keeps_what_it_has_done() -> None:
    transaction = again(folded(opened((4, 5), **REPEATING), 4), (1, 4, 5))
    assert (transaction.repeats, transaction.done, transaction.owed) == (None, {4}, (1, 5))
    assert transaction.beginning == opened().beginning


def test_a_shadow_that_stays_one_keeps_what_it_has_done_whomever_it_repeats() -> None:
    transaction = again(folded(opened((4, 5), **REPEATING), 4), (3, 4, 5), shadows={ME: PEER})
    assert (transaction.repeats, transaction.done) == (1, {4})


@pytest.mark.parametrize("done", [(), (4,), (4, 5)])
@pytest.mark.parametrize("told", [{}, {"shadows": {ME: PEER}}])
def test_a_shadow_that_is_let_go_begins_anew(done: tuple[int, ...], told: dict[str, Any]) -> None:
    """Also if it has done nothing: it may have something under way."""
    before = folded(opened((4, 5), **REPEATING), *done)
    transaction = again(before, (1,), **told)
    assert (transaction.done, transaction.owed, transaction.position) == (frozenset(), (1,), START)
    assert transaction.beginning == before.beginning + 1
    assert transaction.fold(START, 5, before.beginning) is transaction, "it was under way when it was let go"
    assert transaction.fold(START, 1, transaction.beginning).done == {1}


def test_nobody_else_is_let_go() -> None:
    with pytest.raises(ProtocolError, match=r"finished microbatches \[4\] of step 0 were given to others"):
        again(folded(opened((4, 5)), 4), (5,))
    # What was promoted is its own from then on.
    promoted = again(folded(opened((4, 5), **REPEATING), 4), (4, 5))
    with pytest.raises(ProtocolError, match="were given to others"):
        again(promoted, (1,))


@pytest.mark.parametrize("shadows", [{ME: "nobody"}, {ME: PEER, PEER: OTHER}, {ME: ME}])
def test_what_contributes_nothing_cannot_be_repeated(shadows: Mapping[str, str]) -> None:
    with pytest.raises(ProtocolError, match=f"me is to repeat {shadows[ME]}, which contributes nothing"):
        opened((4, 5), shadows=shadows)


# --- plans

POLICIES = (Balanced(), Versatile(), Weighted(), AdaptiveWorld(4))


def test_a_rank_finds_its_own_role() -> None:
    crowd = Open(world_of(1, ("a", "b", ME)), START, {}, STORE)
    transaction = Transaction(ME).open(crowd)
    assert transaction.planned(Work(WorkKind.TRAINING, 2), Versatile()) == Share((0,), 0)
    assert transaction.planned(Work(WorkKind.TRAINING, 2), Balanced()) == Share()
    assert transaction.planned(WORK, Balanced()) == Share((6, 7))
    assert transaction.planned(WORK, AdaptiveWorld(4)) == Share((4, 5), None, frozenset({6, 7}))
    assert transaction.planned(EVALUATION, AdaptiveWorld(4)) == Share((6, 7)), "evaluations are whole"


def test_plans_go_by_the_speeds_of_the_generation() -> None:
    transaction = opened(work=None, speeds={0: 5.0, 1: 2.0, 2: 1.0})
    assert transaction.planned(WORK, Weighted()) == Share((0, 1, 2, 3, 4))
    assert transaction.planned(WORK, Balanced()) == Share((0, 1, 2))
    slower = again(transaction, work=None, speeds={0: 1.0, 1: 5.0, 2: 2.0})
    assert slower.planned(WORK, Weighted()) == Share((0,))


@given(st.sampled_from(POLICIES), st.integers(1, 7), st.data())
def test_everybody_plans_over_those_who_stay(policy: Any, size: int, data: st.DataObject) -> None:
    names = [f"r{place}" for place in range(size)]
    leaving = data.draw(st.frozensets(st.sampled_from(names), max_size=size - 1))
    message = Open(world_of(1, names), START, {}, STORE, leaving=leaving)
    shares = {name: Transaction(name).open(message).planned(WORK, policy) for name in names}
    for name in leaving:
        assert shares[name] == Share(dropped=shares[names[0]].dropped)
    plan = policy.plan([place for place, name in enumerate(names) if name not in leaving], WORK.microbatches)
    for place, name in enumerate(names):
        if name not in leaving:
            assert shares[name] == Share(plan.computed_by(place), plan.shadows.get(place), frozenset(plan.dropped))


def test_a_leaver_goes_on_with_what_it_has() -> None:
    transaction = again(folded(opened((0, 1)), 0), (0, 1), leaving=frozenset({ME}))
    assert transaction.owed == (1,)
    assert transaction.planned(WORK, Balanced()) == Share()
    stays = again(transaction, (0, 1))
    assert stays.planned(WORK, Balanced()) == Share((0, 1, 2)), "a later generation says who leaves then"


def test_not_everybody_leaves() -> None:
    with pytest.raises(ProtocolError, match=r"generation 1\.1 was opened to ranks that all leave"):
        opened(leaving=frozenset({ME, PEER, OTHER}))
    assert opened(leaving=frozenset({ME, PEER})).leaving == {0, 1}


# --- newcomers and completed replicas


def test_a_newcomer_takes_up_the_position_with_nothing_done() -> None:
    transaction = Transaction(ME).open(opening(4, (2, 3), LATER, sources={ME: PEER}))
    assert (transaction.position, transaction.work, transaction.owed) == (LATER, WORK, (2, 3))
    assert (transaction.source, transaction.lacks) == (PEER, True)
    with pytest.raises(ProtocolError, match="training over 8 microbatches at step 7 begins without the state before"):
        transaction.take_up(LATER, WORK, Share())
    there = transaction.obtain()
    assert not there.lacks
    assert there.take_up(LATER, WORK, Share((9,))).owed == (2, 3)


def test_whoever_lacks_the_state_says_so_in_its_report() -> None:
    newcomer = Transaction(ME).open(opening(4, (2, 3), LATER, sources={ME: PEER})).abandon(generation(4))
    assert newcomer.report().lacks
    assert not newcomer.obtain().report().lacks
    assert not opened().abandon(generation(1)).report().lacks


def test_a_newcomer_that_is_not_told_where_the_state_is_does_not_begin_with_its_own() -> None:
    with pytest.raises(ProtocolError, match="step 0 is called decided, but its vote was never entered here"):
        Transaction(ME).open(opening(4, (2, 3), LATER))
    with pytest.raises(ProtocolError, match="never entered here"):
        Transaction(ME).open(opening(4, (2, 3), LATER, sources={ME: ME}))
    assert Transaction(ME).open(opening(4, (2, 3), LATER, sources={PEER: OTHER, ME: OTHER})).lacks


def test_a_parked_rank_that_was_a_member_comes_in_like_a_newcomer() -> None:
    before = folded(opened((0, 1)), 0)
    transaction = again(before, (2, 3), position=LATER, sources={ME: PEER})
    assert (transaction.position, transaction.done, transaction.source) == (LATER, frozenset(), PEER)
    assert transaction.beginning == before.beginning + 1


def test_a_rank_of_a_completed_replica_begins_anew_with_its_own_state() -> None:
    before = folded(opened((0, 1)), 0)
    transaction = again(before, (0, 1), sources={ME: ME})
    assert (transaction.position, transaction.done, transaction.lacks) == (START, frozenset(), False)
    assert transaction.beginning == before.beginning + 1
    assert transaction.fold(START, 0, before.beginning) is transaction
    voted = folded(opened((0, 1)), 0, 1).enter(generation(1))
    follows = again(voted, (0, 1), position=Position(1), sources={ME: ME})
    assert (follows.position, follows.lacks) == (Position(1), False)


def test_what_is_obtained_is_kept_and_what_is_not_is_still_lacking_in_the_next_generation() -> None:
    newcomer = Transaction(ME).open(opening(4, (2, 3), LATER, sources={ME: PEER}))
    assert again(newcomer, (2, 3), position=LATER).source == PEER
    assert again(newcomer, (2, 3), position=LATER, sources={ME: OTHER}).source == OTHER
    assert not again(newcomer.obtain(), (2, 3), position=LATER).lacks


def test_a_whole_step_is_begun_once_more_from_its_evaluations() -> None:
    """Nobody is left who could go on with it, but everybody has the state before it."""
    at_unit = Position(7, unit=2)
    before = replace(folded(opened((0, 1), poison={0: frozenset({5})}), 0), position=at_unit)
    transaction = again(before, work=None, position=LATER, sources={ME: ME})
    assert (transaction.position, transaction.work, transaction.indices) == (LATER, None, ())
    assert (transaction.done, transaction.lacks) == (frozenset(), False)
    assert transaction.beginning == before.beginning + 1
    begun = replace(before, position=LATER)
    assert again(begun, work=None, position=LATER, sources={ME: ME}).work is None, "what was begun there is forgotten"
    told: dict[str, Any]
    for position, told in (
        (LATER, {"sources": {ME: ME}, "work": WORK}),
        (LATER, {"work": None}),
        (Position(7, unit=1), {"sources": {ME: ME}, "work": None}),
        (Position(6), {"sources": {ME: ME}, "work": None}),
    ):
        with pytest.raises(ProtocolError, match="step 7, unit 2 follows a decided one"):
            again(before, position=position, **told)


def test_poison_is_that_of_the_training_step() -> None:
    poison = {0: frozenset({5}), 7: frozenset({1})}
    assert opened(poison=poison).poison == {5}
    assert opened(poison=poison, work=EVALUATION).poison == frozenset()
    assert opened(poison=poison, work=None).poison == frozenset()
    later = Transaction(ME).open(opening(1, position=LATER, poison=poison, sources={ME: PEER}))
    assert later.poison == {1}


# --- going back


@pytest.mark.parametrize("position", [Position(3), LATER, Position(9)])
def test_only_a_restore_goes_back_and_everything_is_forgotten(position: Position) -> None:
    before = folded(opened((0, 1), poison={0: frozenset({5})}), 0)
    before = replace(before, position=LATER)
    with pytest.raises(ProtocolError, match="step 7 follows a decided one, 3 was opened"):
        again(before, position=Position(3))
    transaction = again(before, work=None, position=position, restore=VAULT, sources={ME: ME})
    assert (transaction.position, transaction.work, transaction.indices) == (position, None, ())
    assert (transaction.done, transaction.poison, transaction.entered) == (frozenset(), frozenset(), None)
    assert (transaction.restore, transaction.source, transaction.lacks) == (VAULT, None, True)
    assert transaction.beginning == before.beginning + 1
    assert transaction.obtain().take_up(position, WORK, Share((4,))).owed == (4,)


# --- promises, and controllers that take over


def test_an_open_older_than_a_promise_changes_nothing() -> None:
    transaction = opened().promise(generation(3))
    assert transaction.abandoned
    assert transaction.open(opening(2, (0, 1))) is transaction
    assert transaction.open(opening(3, (0, 1))).current(generation(3))


def test_an_older_promise_changes_nothing() -> None:
    transaction = opened().promise(generation(3))
    assert transaction.promise(generation(2)) is transaction
    assert transaction.report().promised == generation(3)
    assert transaction.promise(generation(4)).report().promised == generation(4)


def test_a_promise_for_this_generation_abandons_only_older_ones() -> None:
    transaction = opened().promise(generation(1))
    assert transaction.current(generation(1))
    newcomer = Transaction(ME).promise(generation(5))
    assert not newcomer.abandoned
    assert newcomer.open(opening(4, sources={ME: PEER})) is newcomer


def test_where_a_rank_stands_for_a_controller_that_does_not_know() -> None:
    assert Transaction(ME).serving() is None
    transaction = folded(opened((0, 1), poison={0: frozenset({5})}), 0)
    expected = Serving(ME, world_of(1), False, START, WORK, {0: frozenset({5})})
    assert transaction.serving() == expected
    assert transaction.abandon(generation(1)).serving() == replace(expected, abandoned=True)


def test_work_is_begun_where_this_rank_stands() -> None:
    with pytest.raises(ProtocolError, match="training over 8 microbatches at step 7 begins while at step 0"):
        opened(work=None).take_up(LATER, WORK, Share())


def test_another_work_than_was_reported_is_no_continuation() -> None:
    for work in (None, EVALUATION):
        with pytest.raises(ProtocolError, match="training over 8 microbatches at step 0 was reported, but the contro"):
            again(opened((0, 1)), (0, 1), work=work)

"""The balanced workload: whatever dies and however often, a step holds every microbatch once."""

from collections.abc import Mapping, Sequence

import pytest
from everstep.policies.workload import Assignment, Balanced, Contradiction
from everstep.policies.world import Progress
from hypothesis import given
from hypothesis import strategies as st

from .lives import (
    Held,
    assert_extends,
    assert_plans,
    assert_survives,
    assert_survives_everything,
    batch_sizes,
    computed,
    facts,
    nothing,
    replica_ids,
)

POLICY = Balanced()


def held_of(assignment: Assignment, survivors: Sequence[int], finished: Mapping[int, int]) -> Held:
    """What survivors hold once they have finished this many of their indices, in order."""
    return facts(assignment, survivors, computed(assignment, nothing(list(assignment.indices)), finished))


@given(replica_ids, batch_sizes)
def test_a_plan_differs_by_at_most_one_and_is_contiguous(replicas: list[int], microbatches: int) -> None:
    assignment = assert_plans(POLICY, replicas, microbatches)
    sizes = [len(assignment.indices[replica]) for replica in sorted(replicas)]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)
    assert [index for replica in sorted(replicas) for index in assignment.indices[replica]] == list(range(microbatches))


@given(st.data(), replica_ids, batch_sizes)
def test_a_plan_does_not_depend_on_the_order_of_replicas(
    data: st.DataObject, replicas: list[int], microbatches: int
) -> None:
    shuffled = data.draw(st.permutations(replicas))
    assert POLICY.plan(shuffled, microbatches).indices == POLICY.plan(replicas, microbatches).indices


def test_a_world_larger_than_the_batch_has_idle_members() -> None:
    assert POLICY.plan([0, 1, 2], 2).indices == {0: (0,), 1: (1,), 2: ()}


@pytest.mark.parametrize("dead", range(1, 16))
def test_every_set_of_dead_replicas_at_every_progress(dead: int) -> None:
    replicas = [0, 1, 2, 3]
    plan = POLICY.plan(replicas, 9)
    survivors = [replica for replica in replicas if not dead >> replica & 1]
    if not survivors:
        with pytest.raises(ValueError, match="at least one replica"):
            POLICY.extend({}, 9)
        return
    for progress in range(4 ** len(survivors)):
        finished = {replica: progress // 4**place % 4 for place, replica in enumerate(survivors)}
        assert_extends(POLICY, held_of(plan, survivors, finished), 9)


@given(st.data())
def test_again_and_again_inside_the_extension_and_in_later_steps(data: st.DataObject) -> None:
    assert_survives(data, POLICY)


@pytest.mark.parametrize("replicas", [2, 3, 4, 5])
def test_it_survives_everything_in_small(replicas: int) -> None:
    for microbatches in range(7):
        assert_survives_everything(POLICY, replicas, microbatches)


@given(replica_ids, batch_sizes)
def test_nobody_dead_changes_nothing(replicas: list[int], microbatches: int) -> None:
    plan = POLICY.plan(replicas, microbatches)
    extended = assert_extends(POLICY, held_of(plan, replicas, dict.fromkeys(replicas, 1)), microbatches)
    assert extended.indices == plan.indices


@given(replica_ids, batch_sizes)
def test_replicas_that_hold_nothing_share_a_whole_step_evenly(replicas: list[int], microbatches: int) -> None:
    extended = assert_extends(POLICY, {replica: Progress() for replica in replicas}, microbatches)
    sizes = [len(indices) for indices in extended.indices.values()]
    assert max(sizes) - min(sizes) <= 1


def test_what_was_lost_goes_to_the_idlest_first() -> None:
    held = {0: Progress(frozenset({0, 1, 2})), 1: Progress(frozenset({3}), frozenset({4, 5}))}
    # 6 and 7 bring replica 0 up to the two that replica 1 still computes, then the lower id goes first.
    assert POLICY.extend(held, 9).indices == {0: (0, 1, 2, 6, 7, 8), 1: (3, 4, 5)}


@pytest.mark.parametrize(
    ("held", "text"),
    [
        ({}, "at least one replica"),
        ({0: Progress(frozenset({1})), 1: Progress(frozenset({1}))}, r"microbatches \[1\] are held by more than one"),
        ({0: Progress(frozenset({2})), 1: Progress(owed=frozenset({2}))}, r"\[2\] are held by more than one"),
        ({0: Progress(frozenset({4}))}, r"not all in 0\.\.3"),
        ({0: Progress(owed=frozenset({-1}))}, r"not all in 0\.\.3"),
    ],
)
def test_facts_that_cannot_be_are_refused(held: Held, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        POLICY.extend(held, 4)


def test_a_plan_for_nobody_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one replica"):
        POLICY.plan([], 4)


def test_who_contradicts_whom_is_said() -> None:
    one, two, three = (Progress(frozenset(held)) for held in ({0, 1}, {1, 2}, {3}))
    with pytest.raises(Contradiction) as doubled:
        Balanced().extend({0: one, 1: three, 2: two}, 4)
    assert str(doubled.value) == "microbatches [1] are held by more than one of replicas [0, 2]"
    assert doubled.value.replicas == (0, 2)
    inside, beyond, before = (Progress(frozenset(held)) for held in ({0, 3}, {2, 4}, {-1, 1}))
    with pytest.raises(Contradiction) as strange:
        Balanced().extend({5: inside, 7: beyond, 8: before}, 4)
    assert str(strange.value) == "microbatches [-1, 4] of replicas [7, 8] are not all in 0..3"
    assert strange.value.replicas == (7, 8)

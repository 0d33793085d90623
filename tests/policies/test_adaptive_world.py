"""The strawman: what the dead had is dropped, and it says so."""

import pytest
from everstep.policies.workload import AdaptiveWorld, Balanced, WorkloadPolicy, workload_policy
from everstep.policies.world import Progress
from hypothesis import given
from hypothesis import strategies as st

from .lives import batch_sizes, replica_ids


def test_what_the_dead_had_is_dropped() -> None:
    held = {0: Progress(frozenset({0}), frozenset({1})), 2: Progress(frozenset({4, 5}))}
    extended = AdaptiveWorld().extend(held, 8)
    assert extended.indices == {0: (0, 1), 2: (4, 5)}
    assert extended.dropped == (2, 3, 6, 7)
    assert extended.reason == "an adaptive world is not exact: 4 microbatches are dropped"


def test_nobody_dead_drops_nothing() -> None:
    assert AdaptiveWorld().extend({0: Progress(owed=frozenset({0, 1}))}, 2).dropped == ()


def test_the_next_step_is_whole_again_if_no_initial_world_is_known() -> None:
    plan = AdaptiveWorld().plan([0, 2], 5)
    assert plan.indices == Balanced().plan([0, 2], 5).indices
    assert (plan.dropped, plan.reason) == ((), "an adaptive world is not exact: 0 microbatches are dropped")


def test_later_steps_shrink_with_the_world() -> None:
    policy = AdaptiveWorld(initial=3)
    assert policy.plan([2, 0, 1], 6).indices == {0: (0, 1), 1: (2, 3), 2: (4, 5)}
    assert policy.plan([0, 1, 2], 6).dropped == ()
    shrunk = policy.plan([2, 0], 6)
    assert (shrunk.indices, shrunk.dropped) == ({0: (0, 1), 2: (2, 3)}, (4, 5))
    assert shrunk.reason == "an adaptive world is not exact: 2 microbatches are dropped"


@given(replica_ids, batch_sizes, st.integers(1, 8))
def test_only_missing_replicas_make_a_step_smaller(replicas: list[int], microbatches: int, initial: int) -> None:
    plan = AdaptiveWorld(initial).plan(replicas, microbatches)
    summed = [index for indices in plan.indices.values() for index in indices]
    assert sorted((*summed, *plan.dropped)) == list(range(microbatches))
    whole = Balanced().plan(range(max(initial, len(replicas))), microbatches).indices
    assert [len(plan.indices[replica]) for replica in sorted(replicas)] == [
        len(whole[place]) for place in range(len(replicas))
    ]
    assert (plan.dropped == ()) == (len(replicas) >= min(initial, microbatches))


@pytest.mark.parametrize("initial", [0, -1])
def test_an_initial_world_that_cannot_be_is_refused(initial: int) -> None:
    with pytest.raises(ValueError, match=f"an initial world of {initial} replicas must have at least 1"):
        AdaptiveWorld(initial)


def test_facts_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one replica"):
        AdaptiveWorld().extend({}, 4)
    with pytest.raises(ValueError, match="held by more than one"):
        AdaptiveWorld().extend({0: Progress(frozenset({1})), 1: Progress(frozenset({1}))}, 4)


@pytest.mark.parametrize("policy", [AdaptiveWorld(), workload_policy("adaptive_world")])
def test_by_default_only_the_step_of_the_loss_shrinks(policy: WorkloadPolicy) -> None:
    assert policy.plan([0], 4).dropped == ()

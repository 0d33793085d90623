"""The strawman: what the dead had is dropped, and it says so."""

import pytest
from everstep.policies.workload import AdaptiveWorld, Balanced
from everstep.policies.world import Progress


def test_what_the_dead_had_is_dropped() -> None:
    held = {0: Progress(frozenset({0}), frozenset({1})), 2: Progress(frozenset({4, 5}))}
    extended = AdaptiveWorld().extend(held, 8)
    assert extended.indices == {0: (0, 1), 2: (4, 5)}
    assert extended.dropped == (2, 3, 6, 7)
    assert extended.reason == "an adaptive world is not exact: 4 microbatches are dropped"


def test_nobody_dead_drops_nothing() -> None:
    assert AdaptiveWorld().extend({0: Progress(owed=frozenset({0, 1}))}, 2).dropped == ()


def test_the_next_step_is_whole_again_without_a_quota() -> None:
    plan = AdaptiveWorld().plan([0, 2], 5)
    assert plan.indices == Balanced().plan([0, 2], 5).indices
    assert (plan.dropped, plan.reason) == ((), "an adaptive world is not exact: 0 microbatches are dropped")


def test_with_a_quota_later_steps_shrink_with_the_world() -> None:
    policy = AdaptiveWorld(quota=2)
    assert policy.plan([2, 0, 1], 6).indices == {0: (0, 1), 1: (2, 3), 2: (4, 5)}
    assert policy.plan([0, 1, 2], 6).dropped == ()
    shrunk = policy.plan([2, 0], 6)
    assert (shrunk.indices, shrunk.dropped) == ({0: (0, 1), 2: (2, 3)}, (4, 5))
    assert shrunk.reason == "an adaptive world is not exact: 2 microbatches are dropped"
    assert policy.plan([0, 1, 2, 3], 5).indices == {0: (0, 1), 1: (2, 3), 2: (4,), 3: ()}


@pytest.mark.parametrize("quota", [0, -1])
def test_a_quota_that_cannot_be_is_refused(quota: int) -> None:
    with pytest.raises(ValueError, match=f"quota {quota} must be at least 1"):
        AdaptiveWorld(quota)
    assert AdaptiveWorld(1).plan([0], 1).indices == {0: (0,)}


def test_facts_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one replica"):
        AdaptiveWorld().extend({}, 4)
    with pytest.raises(ValueError, match="held by more than one"):
        AdaptiveWorld().extend({0: Progress(frozenset({1})), 1: Progress(frozenset({1}))}, 4)

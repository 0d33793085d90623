"""The workload by speed: a slow replica owes less, and the last one is done as early as it can be."""

import math
from collections.abc import Iterator, Mapping

import pytest
from everstep.policies.workload import Assignment, Balanced, Weighted
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
    replica_ids,
)

speeds_of_all = st.fixed_dictionaries({replica: st.sampled_from((0.125, 0.5, 1.0, 1.7, 3.0)) for replica in range(41)})


def time_needed(quotas: Mapping[int, int], speeds: Mapping[int, float]) -> float:
    return max(quota / speeds[replica] for replica, quota in quotas.items())


def quotas_of(assignment: Assignment) -> dict[int, int]:
    return {replica: len(indices) for replica, indices in assignment.indices.items()}


def splits(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    if parts == 1:
        yield (total,)
        return
    for first in range(total + 1):
        for rest in splits(total - first, parts - 1):
            yield (first, *rest)


def test_a_slow_replica_owes_less() -> None:
    plan = assert_plans(Weighted({0: 2.0, 1: 1.0, 2: 2.0, 3: 0.5}), range(4), 11)
    assert plan.indices == {0: (0, 1, 2, 3), 1: (4, 5), 2: (6, 7, 8, 9), 3: (10,)}
    assert plan.reason == "11 microbatches by the speeds of 4 replicas, 0.5 to 2 per second"


def test_a_very_slow_replica_owes_nothing() -> None:
    assert quotas_of(Weighted({0: 1.0, 1: 0.05}).plan([0, 1], 8)) == {0: 8, 1: 0}


def test_ties_go_to_the_lower_id() -> None:
    assert quotas_of(Weighted({}).plan([5, 3, 4], 4)) == {3: 2, 4: 1, 5: 1}


def test_what_was_lost_goes_to_whoever_is_done_with_it_first() -> None:
    held = {0: Progress(frozenset({0, 1})), 1: Progress(frozenset({2}), frozenset({3}))}
    extended = assert_extends(Weighted({0: 1.0, 1: 4.0}), held, 9, {0: 1.0, 1: 4.0})
    # At one second both would be done with 6: the lower id comes first.
    assert extended.indices == {0: (0, 1, 6), 1: (2, 3, 4, 5, 7, 8)}


def test_an_unknown_replica_counts_as_the_median() -> None:
    plan = Weighted({0: 1.0, 1: 2.0, 2: 8.0}).plan([1, 2, 7], 12)
    assert quotas_of(plan) == {1: 2, 2: 8, 7: 2}


def test_speeds_are_rounded_so_that_noise_changes_nothing() -> None:
    policy = Weighted({1: 1.2345678, 0: 987654.0})
    assert policy.speeds == {0: 988000.0, 1: 1.23}
    assert list(policy.speeds) == [0, 1]
    with pytest.raises(TypeError):
        policy.speeds[0] = 1.0  # type: ignore[index]


def test_speeds_that_change_later_do_not_reach_it() -> None:
    speeds = {0: 1.0, 1: 1.0}
    policy = Weighted(speeds)
    speeds[1] = 100.0
    assert quotas_of(policy.plan([0, 1], 4)) == {0: 2, 1: 2}


@pytest.mark.parametrize("speed", [0.0, -1.0, math.nan, math.inf])
def test_speeds_that_cannot_be_are_refused(speed: float) -> None:
    with pytest.raises(ValueError, match="of replica 3 must be positive"):
        Weighted({0: 1.0, 3: speed})


@given(replica_ids, batch_sizes)
def test_equal_speeds_are_balanced(replicas: list[int], microbatches: int) -> None:
    plan = Weighted(dict.fromkeys(replicas, 0.3)).plan(replicas, microbatches)
    assert plan.indices == Balanced().plan(replicas, microbatches).indices


@pytest.mark.parametrize(
    "speeds", [(1.0, 1.0, 1.0), (1.0, 2.0, 3.0), (0.3, 0.1, 0.7), (5.0, 0.5, 0.01), (1.1, 1.0, 0.9)]
)
def test_no_other_split_is_quicker(speeds: tuple[float, ...]) -> None:
    known = dict(enumerate(speeds))
    for replicas in (1, 2, 3):
        for microbatches in range(13):
            plan = assert_plans(Weighted(known), range(replicas), microbatches)
            best = min(time_needed(dict(enumerate(split)), known) for split in splits(microbatches, replicas))
            assert time_needed(quotas_of(plan), known) == pytest.approx(best, rel=1e-12, abs=0)


@given(replica_ids, st.integers(0, 300), speeds_of_all)
def test_a_plan_is_what_giving_out_one_by_one_leads_to(
    replicas: list[int], microbatches: int, speeds: dict[int, float]
) -> None:
    """The shortcut over the proportional shares changes nothing, and nobody could have taken another's last one."""
    quotas = quotas_of(assert_plans(Weighted(speeds), replicas, microbatches))
    one_by_one = dict.fromkeys(sorted(replicas), 0)
    for _ in range(microbatches):
        first = min(one_by_one, key=lambda replica: ((one_by_one[replica] + 1) / speeds[replica], replica))
        one_by_one[first] += 1
    assert quotas == one_by_one
    # Never below the proportional share, rounded down.
    total = sum(speeds[replica] for replica in replicas)
    assert all(quotas[replica] > microbatches * speeds[replica] / total - 1 - 1e-9 for replica in replicas)


def test_a_large_plan_starts_from_the_proportional_shares() -> None:
    speeds = {replica: 1.0 + replica % 7 / 10 for replica in range(64)}
    quotas = quotas_of(assert_plans(Weighted(speeds), range(64), 8192))
    total = sum(speeds.values())
    assert all(abs(quotas[replica] - 8192 * speed / total) < 2 for replica, speed in speeds.items())


@given(st.data(), speeds_of_all)
def test_it_survives(data: st.DataObject, speeds: dict[int, float]) -> None:
    assert_survives(data, Weighted(speeds), speeds)


@pytest.mark.parametrize("replicas", [2, 3, 4, 5])
def test_it_survives_everything_in_small(replicas: int) -> None:
    speeds = {0: 1.0, 1: 3.0, 2: 0.5, 3: 1.0, 4: 1.7}
    policy = Weighted(speeds)
    for microbatches in range(7):
        assert_survives_everything(policy, replicas, microbatches, speeds)


@pytest.mark.parametrize(
    ("held", "text"),
    [
        ({}, "at least one replica"),
        ({0: Progress(frozenset({1})), 1: Progress(frozenset({1}))}, r"\[1\] are held by more than one"),
        ({0: Progress(owed=frozenset({4}))}, r"not all in 0\.\.3"),
    ],
)
def test_facts_that_cannot_be_are_refused(held: Held, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Weighted({}).extend(held, 4)


def test_a_plan_for_nobody_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one replica"):
        Weighted({}).plan([], 4)

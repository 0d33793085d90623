"""The balanced workload: whatever dies and however often, a step holds every microbatch once."""

from collections.abc import Mapping, Sequence

import pytest
from everstep.policies.workload import Assignment, Balanced, workload_policy
from everstep.policies.world import Progress
from hypothesis import given
from hypothesis import strategies as st

Held = dict[int, Progress]

replica_ids = st.lists(st.integers(0, 40), min_size=1, max_size=8, unique=True)
batch_sizes = st.integers(0, 24)


def assert_whole(assignment: Assignment, replicas: Sequence[int], microbatches: int) -> None:
    """Every index of the step, each once, over exactly these replicas, ascending for each."""
    assert set(assignment.indices) == set(replicas)
    given_out = [index for indices in assignment.indices.values() for index in indices]
    assert sorted(given_out) == list(range(microbatches))
    assert all(list(indices) == sorted(indices) for indices in assignment.indices.values())


def assert_extends(held: Mapping[int, Progress], microbatches: int) -> Assignment:
    """What must be true of any extension of ``held``."""
    assignment = Balanced().extend(held, microbatches)
    assert_whole(assignment, list(held), microbatches)
    remaining = {}
    for replica, progress in held.items():
        mine = set(assignment.indices[replica])
        assert progress.done | progress.owed <= mine, "what a replica holds or computes is taken from it"
        remaining[replica] = len(mine - progress.done)
    for replica, left in remaining.items():
        if set(assignment.indices[replica]) - held[replica].done - held[replica].owed:
            # Whoever was given something was the idlest: nobody idles while it has two more to compute.
            assert left <= min(remaining.values()) + 1
    return assignment


def held_of(assignment: Assignment, survivors: Sequence[int], finished: Mapping[int, int]) -> Held:
    """What survivors hold once they have finished this many of their indices, in order."""
    held = {}
    for replica in survivors:
        indices = assignment.indices[replica]
        count = min(finished.get(replica, 0), len(indices))
        held[replica] = Progress(frozenset(indices[:count]), frozenset(indices[count:]))
    return held


@given(replica_ids, batch_sizes)
def test_a_plan_differs_by_at_most_one_and_is_contiguous(replicas: list[int], microbatches: int) -> None:
    assignment = Balanced().plan(replicas, microbatches)
    assert_whole(assignment, replicas, microbatches)
    sizes = [len(assignment.indices[replica]) for replica in sorted(replicas)]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)
    assert [index for replica in sorted(replicas) for index in assignment.indices[replica]] == list(range(microbatches))


@given(st.data(), replica_ids, batch_sizes)
def test_a_plan_does_not_depend_on_the_order_of_replicas(
    data: st.DataObject, replicas: list[int], microbatches: int
) -> None:
    shuffled = data.draw(st.permutations(replicas))
    assert Balanced().plan(shuffled, microbatches).indices == Balanced().plan(replicas, microbatches).indices


def test_a_world_larger_than_the_batch_has_idle_members() -> None:
    assert Balanced().plan([0, 1, 2], 2).indices == {0: (0,), 1: (1,), 2: ()}


@pytest.mark.parametrize("dead", range(1, 16))
def test_every_set_of_dead_replicas_at_every_progress(dead: int) -> None:
    replicas = [0, 1, 2, 3]
    plan = Balanced().plan(replicas, 9)
    survivors = [replica for replica in replicas if not dead >> replica & 1]
    if not survivors:
        with pytest.raises(ValueError, match="at least one replica"):
            Balanced().extend({}, 9)
        return
    for progress in range(4 ** len(survivors)):
        finished = {replica: progress // 4**place % 4 for place, replica in enumerate(survivors)}
        assert_extends(held_of(plan, survivors, finished), 9)


@given(st.data())
def test_again_and_again_inside_the_extension(data: st.DataObject) -> None:
    """Losses one after the other, each while the last extension is still being computed, down to one replica."""
    replicas = data.draw(replica_ids, "replicas")
    microbatches = data.draw(batch_sizes, "microbatches")
    assignment = Balanced().plan(replicas, microbatches)
    done: Held = {replica: Progress() for replica in replicas}
    while len(replicas) > 1:
        replicas = data.draw(st.lists(st.sampled_from(replicas), min_size=1, max_size=len(replicas) - 1, unique=True))
        fresh = data.draw(st.dictionaries(st.sampled_from(replicas), st.integers(0, 10)))
        held = {}
        for replica in replicas:
            owed = [index for index in assignment.indices[replica] if index not in done[replica].done]
            count = min(fresh.get(replica, 0), len(owed))
            held[replica] = Progress(done[replica].done | set(owed[:count]), frozenset(owed[count:]))
        done = held
        assignment = assert_extends(held, microbatches)
    assert assignment.indices[replicas[0]] == tuple(range(microbatches))


@given(replica_ids, batch_sizes)
def test_nobody_dead_changes_nothing(replicas: list[int], microbatches: int) -> None:
    plan = Balanced().plan(replicas, microbatches)
    extended = assert_extends(held_of(plan, replicas, dict.fromkeys(replicas, 1)), microbatches)
    assert extended.indices == plan.indices


@given(replica_ids, batch_sizes)
def test_replicas_that_hold_nothing_share_a_whole_step_evenly(replicas: list[int], microbatches: int) -> None:
    extended = assert_extends({replica: Progress() for replica in replicas}, microbatches)
    sizes = [len(indices) for indices in extended.indices.values()]
    assert max(sizes) - min(sizes) <= 1


def test_what_was_lost_goes_to_the_idlest_first() -> None:
    held = {0: Progress(frozenset({0, 1, 2})), 1: Progress(frozenset({3}), frozenset({4, 5}))}
    # 6 and 7 bring replica 0 up to the two that replica 1 still computes, then the lower id goes first.
    assert Balanced().extend(held, 9).indices == {0: (0, 1, 2, 6, 7, 8), 1: (3, 4, 5)}


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
        Balanced().extend(held, 4)


def test_a_plan_for_nobody_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one replica"):
        Balanced().plan([], 4)


def test_policies_by_name() -> None:
    assert isinstance(workload_policy("balanced"), Balanced)
    with pytest.raises(ValueError, match="unknown workload policy 'fair'; use one of: balanced"):
        workload_policy("fair")

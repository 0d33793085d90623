"""The versatile workload: majors, a minor, and shadows that repeat one named replica each."""

from collections import Counter
from itertools import combinations

import pytest
from everstep.policies.workload import Assignment, Balanced, Contradiction, Versatile
from everstep.policies.workload.published import Role, adjust, advance
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
    carried,
    computed,
    facts,
    groups,
    nothing,
    replica_ids,
)
from .recover_table import KNOWN, SHARED, Row, shared_rows

POLICY = Versatile()


def own(*indices: int, owed: tuple[int, ...] = ()) -> Progress:
    return Progress(frozenset(indices), frozenset(owed))


def repeating(replica: int, *indices: int, owed: tuple[int, ...] = ()) -> Progress:
    return Progress(frozenset(indices), frozenset(owed), replica)


def finished(plan: Assignment, survivors: list[int]) -> Held:
    """Everybody has computed everything."""
    done = computed(plan, nothing(list(plan.indices)), dict.fromkeys(plan.indices, 10**6))
    return facts(plan, survivors, done)


def assert_as_published(row: Row) -> None:
    """The layout of the table, and its extension for a loss at the end of a step, which is where the paper has it."""
    plan = POLICY.plan(range(row.survivors), row.microbatches)
    sizes = Counter(map(len, plan.indices.values()))
    minors = [replica for replica, indices in plan.indices.items() if 0 < len(indices) < row.next_quota]
    assert sizes[row.next_quota] == row.majors
    assert len(minors) == row.minors
    assert [len(plan.indices[minor]) for minor in minors] == [row.minor_quota] * row.minors
    assert sum(repeated in minors for repeated in plan.shadows.values()) == row.minor_spares
    assert sum(repeated not in minors for repeated in plan.shadows.values()) == row.major_spares

    before = POLICY.plan(range(row.survivors + 1), row.microbatches)
    held = finished(before, list(range(row.survivors)))
    extended = assert_extends(POLICY, held, row.microbatches)
    added = [len(extended.indices[replica]) - len(before.indices[replica]) for replica in held]
    assert sum(added) == row.microbatches - row.contributed
    assert max(added) == row.extra
    if row.extra:
        assert added.count(row.extra - 1) == row.boundary_minors
        assert added.count(row.extra) == row.survivors - row.boundary_minors


@pytest.mark.parametrize("row", KNOWN, ids=lambda row: f"{row.initial_replicas}x{row.initial_quota}-{row.survivors}")
def test_known_rows_of_the_published_rule(row: Row) -> None:
    assert_as_published(row)


@pytest.mark.skipif(not SHARED.exists(), reason="the table of 140 rows does not lie beside this checkout")
def test_every_row_of_the_published_rule() -> None:
    for row in shared_rows():
        assert_as_published(row)


def test_a_plan_with_every_role() -> None:
    plan = assert_plans(POLICY, range(31), 256)
    assert [len(plan.indices[replica]) for replica in range(31)] == [9] * 28 + [4, 0, 0]
    assert plan.shadows == {29: 0, 30: 28}
    assert plan.reason == "28 majors of 9 microbatches, 1 minor of 4, 2 shadows"


def test_a_single_leftover_repeats_a_major_not_the_minor() -> None:
    plan = assert_plans(POLICY, range(7), 16)
    assert [len(indices) for indices in plan.indices.values()] == [3] * 5 + [1, 0]
    assert plan.shadows == {6: 0}


def test_a_world_larger_than_the_batch_has_several_shadows_of_one_replica() -> None:
    plan = assert_plans(POLICY, [9, 2, 4, 6, 7], 2)
    assert plan.indices == {2: (0,), 4: (1,), 6: (), 7: (), 9: ()}
    assert plan.shadows == {6: 2, 7: 4, 9: 2}
    assert plan.reason == "2 majors of 1 microbatches, 3 shadows"


def test_a_step_without_microbatches_has_nothing_to_repeat() -> None:
    assert POLICY.plan([0, 1], 0).shadows == {}


@given(replica_ids, batch_sizes)
def test_a_plan_is_as_short_as_a_balanced_one(replicas: list[int], microbatches: int) -> None:
    plan = assert_plans(POLICY, replicas, microbatches)
    longest = max(map(len, plan.indices.values()))
    assert longest == max(map(len, Balanced().plan(replicas, microbatches).indices.values()))
    assert sum(0 < len(indices) < longest for indices in plan.indices.values()) <= 1
    if microbatches:
        assert set(plan.shadows) == {replica for replica, indices in plan.indices.items() if not indices}


def test_a_shadow_takes_the_place_of_its_own_major_and_nothing_is_lost() -> None:
    held = {1: own(2, 3), 2: own(4, 5), 3: own(6, 7), 4: repeating(0, 0, 1), 5: repeating(1, 2, 3)}
    extended = assert_extends(POLICY, held, 8)
    assert extended.indices == {1: (2, 3), 2: (4, 5), 3: (6, 7), 4: (0, 1), 5: ()}
    assert extended.shadows == {5: 1}
    assert extended.reason == "0 lost microbatches over 5 replicas; shadow 4 takes the place of 0"


def test_a_promoted_shadow_goes_on_with_what_it_has_not_finished() -> None:
    extended = assert_extends(POLICY, {1: own(2, 3), 2: repeating(0, 0, owed=(1,))}, 4)
    assert extended.indices == {1: (2, 3), 2: (0, 1)}


def test_a_minor_is_replaced_by_its_shadow() -> None:
    plan = POLICY.plan(range(31), 256)
    extended = assert_extends(POLICY, finished(plan, [replica for replica in range(31) if replica != 28]), 256)
    assert extended.indices[30] == plan.indices[28]
    assert extended.shadows == {29: 0}


def test_late_losses_go_to_those_who_contribute_and_shadows_follow() -> None:
    held = {0: own(0, 1), 2: own(4, 5), 3: own(6, 7), 4: repeating(0, 0, 1), 6: repeating(2, 4, 5)}
    extended = assert_extends(POLICY, held, 8)
    assert extended.indices == {0: (0, 1, 2), 2: (3, 4, 5), 3: (6, 7), 4: (), 6: ()}
    assert extended.shadows == {4: 0, 6: 2}
    assert [extended.computed_by(shadow) for shadow in (4, 6)] == [(0, 1, 2), (3, 4, 5)]


def test_early_losses_go_to_shadows_that_let_go_and_the_step_is_no_longer() -> None:
    held = {
        0: own(owed=(0, 1)),
        2: own(owed=(4, 5)),
        3: own(owed=(6, 7)),
        4: repeating(0, owed=(0, 1)),
        6: repeating(2, owed=(4, 5)),
    }
    extended = assert_extends(POLICY, held, 8)
    assert extended.indices == {0: (0, 1), 2: (4, 5), 3: (6, 7), 4: (2,), 6: (3,)}
    assert extended.shadows == {}
    assert extended.reason.endswith("; shadow 4 lets go of 0; shadow 6 lets go of 2")


def test_what_a_shadow_followed_into_an_extension_is_covered_as_well() -> None:
    held = {2: own(4, 5, owed=(3,)), 3: own(6, 7), 4: repeating(0, 0, 1, 2)}
    extended = assert_extends(POLICY, held, 8)
    assert extended.indices == {2: (3, 4, 5), 3: (6, 7), 4: (0, 1, 2)}


def test_of_two_shadows_the_further_is_promoted_and_the_other_repeats_it() -> None:
    held = {1: own(3, 4, 5), 2: repeating(0, 0, owed=(1, 2)), 3: repeating(0, 0, 1, owed=(2,))}
    extended = assert_extends(POLICY, held, 6)
    assert extended.indices == {1: (3, 4, 5), 2: (), 3: (0, 1, 2)}
    assert extended.shadows == {2: 3}
    even = {1: own(3, 4, 5), 2: repeating(0, 0, owed=(1, 2)), 3: repeating(0, 0, owed=(1, 2))}
    assert assert_extends(POLICY, even, 6).shadows == {3: 2}


def test_the_shadow_of_one_who_has_not_come_to_the_step_is_promoted() -> None:
    """It has what nobody else has; the one behind begins with nothing."""
    extended = assert_extends(POLICY, {0: Progress(), 1: own(2, 3), 2: repeating(0, 0, owed=(1,))}, 4)
    assert extended.indices == {0: (), 1: (2, 3), 2: (0, 1)}
    assert extended.shadows == {}


def test_a_shadow_that_has_not_come_to_the_step_works_like_the_others() -> None:
    for empty in (Progress(), repeating(0)):
        extended = assert_extends(POLICY, {0: own(0, owed=(1,)), 2: empty}, 4)
        assert extended.indices == {0: (0, 1, 3), 2: (2,)}
        assert extended.shadows == {}


def test_nobody_dead_changes_nothing() -> None:
    for replicas in range(1, 9):
        for microbatches in range(20):
            plan = POLICY.plan(range(replicas), microbatches)
            extended = assert_extends(POLICY, finished(plan, list(range(replicas))), microbatches)
            assert (extended.indices, extended.shadows) == (plan.indices, plan.shadows)


@pytest.mark.parametrize(
    ("microbatches", "replicas", "dead", "published"),
    [
        (8, 5, {Role.MAJOR: 2}, 6),
        (256, 17, {Role.MAJOR: 2}, 240),
        (16, 7, {Role.MINOR: 1}, 18),
        (256, 21, {Role.MINOR: 1}, 260),
    ],
)
def test_losses_that_the_published_rule_gets_wrong(
    microbatches: int, replicas: int, dead: dict[Role, int], published: int
) -> None:
    layout = advance(replicas, microbatches)
    assert adjust(layout, dead, microbatches).total == published
    plan = POLICY.plan(range(replicas), microbatches)
    places = {Role.MAJOR: range(layout.majors), Role.MINOR: range(layout.majors, layout.majors + 1)}
    for role, count in dead.items():
        for lost in combinations(places[role], count):
            for progress in (0, 1, microbatches):
                done = computed(plan, nothing(range(replicas)), dict.fromkeys(range(replicas), progress))
                survivors = [replica for replica in range(replicas) if replica not in lost]
                assert_extends(POLICY, facts(plan, survivors, done), microbatches)


def test_a_loss_costs_no_more_time_than_if_leftovers_had_idled() -> None:
    for replicas in range(2, 7):
        for microbatches in range(1, 14):
            plan = POLICY.plan(range(replicas), microbatches)
            longest = len(plan.indices[0])
            for progress in range(longest + 1):
                done = computed(plan, nothing(range(replicas)), dict.fromkeys(range(replicas), progress))
                for survivors in groups(range(replicas)):
                    # A promoted shadow owes what its major owed: no more than any other major, if one is left.
                    if max(len(plan.indices[replica]) for replica in survivors) == longest:
                        held = facts(plan, survivors, done)
                        idle = {replica: each if each.repeats is None else Progress() for replica, each in held.items()}
                        with_shadows = remaining(POLICY.extend(held, microbatches), held)
                        assert with_shadows <= remaining(Balanced().extend(idle, microbatches), idle)


def remaining(assignment: Assignment, held: Held) -> int:
    """The most that anybody still computes."""
    done = carried(assignment, {replica: each.done for replica, each in held.items()})
    return max(len(set(assignment.computed_by(replica)) - done[replica]) for replica in assignment.indices)


@given(st.data())
def test_it_survives(data: st.DataObject) -> None:
    assert_survives(data, POLICY)


@pytest.mark.parametrize("replicas", [2, 3, 4, 5])
def test_it_survives_everything_in_small(replicas: int) -> None:
    for microbatches in range(11):
        assert_survives_everything(POLICY, replicas, microbatches)


@pytest.mark.parametrize(
    ("held", "text"),
    [
        ({}, "at least one replica"),
        ({0: own(1), 1: own(1)}, r"microbatches \[1\] are held by more than one"),
        ({1: own(1), 2: repeating(0, 1)}, r"microbatches \[1\] are held by more than one"),
        ({0: own(4)}, r"not all in 0\.\.3"),
        ({0: own(0), 1: repeating(0, 0), 2: repeating(1, 0)}, "replica 2 repeats 1, which is a shadow itself"),
        ({0: own(0), 1: repeating(1, 1)}, "replica 1 repeats 1, which is a shadow itself"),
    ],
)
def test_facts_that_cannot_be_are_refused(held: Held, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        POLICY.extend(held, 4)


def test_of_several_shadows_that_repeat_a_shadow_the_first_is_named() -> None:
    held = {0: own(0), 1: repeating(0, 0), 2: repeating(1, 0), 3: repeating(1, 0)}
    with pytest.raises(Contradiction, match="replica 2 repeats 1, which is a shadow itself") as found:
        POLICY.extend(held, 4)
    assert found.value.replicas == (2, 1)


@pytest.mark.parametrize(
    ("held", "repeated"), [({0: own(0), 1: repeating(0, 0, 2)}, 0), ({1: repeating(0, 0, 1), 2: repeating(0, 2)}, 1)]
)
def test_what_only_a_shadow_was_told_of_is_given_out_again(held: Held, repeated: int) -> None:
    extended = POLICY.extend(held, 4)
    shares = [indices for replica, indices in extended.indices.items() if replica not in extended.shadows]
    assert sorted(index for indices in shares for index in indices) == [0, 1, 2, 3]
    assert repeated not in extended.shadows


@pytest.mark.parametrize(("replicas", "text"), [([], "at least one replica"), ([1, 1], "not distinct")])
def test_worlds_that_cannot_be_are_refused(replicas: list[int], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        POLICY.plan(replicas, 4)

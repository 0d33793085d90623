"""An end that is in several slow groups and in no healthy one."""

import pytest
from everstep.monitors.consensus import Agree, Attributed, Inconclusive, Verdict
from everstep.monitors.links import CONFIRM, GroupTime, Seen, observe, suspects


def group(members: str, ratio: float, resource: str = "tcp", complete: bool = True) -> GroupTime:
    return GroupTime(frozenset(map(int, members)), resource, 0.1 * ratio, 0.1, complete)


GRID = [group("01", 2.0), group("02", 1.8), group("13", 1.0), group("23", 1.05)]


def after(rounds: int, groups: list[GroupTime], stragglers: tuple[int, ...] = ()) -> Verdict:
    seen, verdict = Seen(), observe(Seen(), [])[1]
    for _ in range(rounds):
        seen, verdict = observe(seen, groups, stragglers)
    return verdict


def test_where_slow_groups_meet() -> None:
    assert suspects(GRID) == {(0, "tcp")}
    assert isinstance(after(CONFIRM - 1, GRID), Agree)
    found = after(CONFIRM, GRID)
    assert isinstance(found, Attributed)
    assert found.ranks == (0,)
    assert "rank 0 over tcp" in found.reason


@pytest.mark.parametrize(
    "groups",
    [
        # One slow group has two ends.
        [group("01", 2.0), group("23", 1.0)],
        # Twice the same group is one.
        [group("01", 2.0), group("01", 2.0)],
        # Its end is healthy elsewhere.
        [group("01", 2.0), group("02", 2.0), group("03", 1.1), group("12", 1.0)],
        # Neither slow nor healthy.
        [group("01", 1.3), group("02", 1.3)],
        # Not all of its members were measured.
        [group("01", 2.0), group("02", 2.0, complete=False)],
        # Over different wires.
        [group("01", 2.0), group("02", 2.0, resource="nvlink")],
    ],
)
def test_nobody_is_to_blame(groups: list[GroupTime]) -> None:
    assert suspects(groups) == frozenset()
    assert not isinstance(after(CONFIRM, groups), Attributed)


def test_healthy_over_another_resource_does_not_clear() -> None:
    assert suspects([*GRID, group("03", 1.0, resource="nvlink")]) == {(0, "tcp")}


def test_a_group_with_a_slow_rank_says_nothing_of_links() -> None:
    assert suspects(GRID, stragglers=(1,)) == frozenset()
    assert isinstance(after(CONFIRM, GRID, stragglers=(0,)), Agree)


def test_slow_groups_without_a_common_end() -> None:
    found = after(CONFIRM, [group("01", 2.0), group("23", 2.5)])
    assert isinstance(found, Inconclusive)
    assert "[2, 3]: 2.50 times" in found.reason


def test_it_must_be_so_again_and_again() -> None:
    seen, _ = observe(Seen(), GRID)
    seen, _ = observe(seen, [group("01", 1.0)])
    seen, _ = observe(seen, GRID)
    _, verdict = observe(seen, GRID)
    assert isinstance(verdict, Agree)


def test_a_group_without_a_past() -> None:
    with pytest.raises(ValueError, match=r"group of \[0, 1\]"):
        GroupTime(frozenset({0, 1}), "tcp", 0.1, 0.0)

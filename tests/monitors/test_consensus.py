"""The strict minority is named, and nobody where there is none."""

from math import inf, nan

import pytest
from everstep.monitors.consensus import (
    Agree,
    Attributed,
    Inconclusive,
    can_attribute,
    compare,
    exact,
    statistical,
)
from hypothesis import given
from hypothesis import strategies as st


def held(values: list[int] | list[float]) -> dict[int, float]:
    return dict(enumerate(values))


@pytest.mark.parametrize("values", [[], [7], [7, 7], [7, 7, 7, 7]])
def test_equal_values_agree(values: list[int]) -> None:
    assert exact(held(values)) == Agree(held(values))


@pytest.mark.parametrize(
    ("values", "ranks"),
    [([1, 1, 2], (2,)), ([2, 1, 1, 1], (0,)), ([1, 2, 1, 3, 1], (1, 3)), ([5, 1, 1, 5, 1], (0, 3))],
)
def test_a_strict_majority_names_the_others(values: list[int], ranks: tuple[int, ...]) -> None:
    found = exact(held(values))
    assert isinstance(found, Attributed)
    assert (found.ranks, found.evidence) == (ranks, held(values))


@pytest.mark.parametrize("values", [[1, 2], [1, 1, 2, 2], [1, 1, 2, 3], [1, 2, 3]])
def test_half_is_no_majority(values: list[int]) -> None:
    found = exact(held(values))
    assert isinstance(found, Inconclusive)
    assert "more than half" in found.reason


@given(st.dictionaries(st.integers(0, 99), st.integers(0, 3), max_size=9))
def test_nobody_of_the_majority_is_ever_named(evidence: dict[int, int]) -> None:
    found = exact(evidence)
    if isinstance(found, Attributed):
        rest = {value for rank, value in evidence.items() if rank not in found.ranks}
        assert len(rest) == 1
        assert 2 * len(found.ranks) < len(evidence)
        assert not rest & {evidence[rank] for rank in found.ranks}
    else:
        assert isinstance(found, Agree) == (len(set(evidence.values())) <= 1)


@pytest.mark.parametrize(
    ("values", "ranks"),
    [
        # The median is 1.01 and the scale 0.01.
        ([1.00, 1.01, 0.99, 1.02, 1.05], (4,)),
        # No median distance: that between the quartiles.
        ([1.0, 1.0, 1.0, 1.0, 1.1, 1.1, 2.0], (6,)),
        # Neither: the whole range, of which half is the bound.
        ([1.0, 1.0, 1.0, 1.0, 1.0, 5.0], (5,)),
        # Of four, the upper quartile is interpolated: the scale is 1, not 4.
        ([1.0, 1.0, 1.0, 5.0], (3,)),
        ([1.0, 1.01, 0.99, 0.1], (3,)),
    ],
)
def test_far_from_the_median(values: list[float], ranks: tuple[int, ...]) -> None:
    found = statistical(held(values))
    assert isinstance(found, Attributed)
    assert found.ranks == ranks


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 9.0], [1.0] * 4, [1.0, 1.0 + 1e-10, 1.0], [1.0, 1.01, 1.02, 1.03]])
def test_near_the_median(values: list[float]) -> None:
    assert statistical(held(values)) == Agree(held(values))


@given(st.lists(st.floats(0.001, 1000), max_size=12), st.floats(0.01, 5))
def test_fewer_than_half_are_far(values: list[float], distance: float) -> None:
    found = statistical(held(values), distance)
    if isinstance(found, Attributed):
        assert 2 * len(found.ranks) < len(values)


@pytest.mark.parametrize("values", [[1.0, 2.0], [1.0, 2.0, 3.0, 4.0]])
def test_nobody_is_named_where_half_are_far(values: list[float]) -> None:
    found = statistical(held(values), distance=0.5)
    assert isinstance(found, Inconclusive)
    assert "far from the median" in found.reason


def test_numbers_that_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="rank 1 is nan"):
        statistical({0: 1.0, 1: nan, 2: 1.0})
    with pytest.raises(ValueError, match="rank 0 is inf"):
        statistical({0: inf})
    with pytest.raises(ValueError, match="above 0"):
        statistical({0: 1.0}, distance=0.0)


def test_evidence_that_is_missing_is_inconclusive() -> None:
    found = compare({0: {"a": 1, "b": 1}, 1: {"a": 1, "b": 2}, 2: {"b": 1}}, ("a", "b"))
    assert isinstance(found["a"], Inconclusive)
    assert "rank 2 brought no a" in found["a"].reason
    assert isinstance(found["b"], Attributed)
    assert found["b"].ranks == (1,)


def test_two_peers_are_told_that_they_only_detect() -> None:
    assert can_attribute(3) is None
    assert "2 peers can detect" in str(can_attribute(2))

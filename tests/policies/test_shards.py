"""A state that all ranks hold is divided among them: all of it, once, and fairly."""

import pytest
from everstep.policies.shards import divide
from hypothesis import given
from hypothesis import strategies as st

SIZES = st.lists(st.integers(0, 10_000), max_size=60)


@given(SIZES, st.integers(1, 12))
def test_everything_is_saved_once(sizes: list[int], ranks: int) -> None:
    shares = divide(sizes, ranks)
    assert len(shares) == ranks
    assert sorted(place for share in shares for place in share) == list(range(len(sizes)))
    assert all(list(share) == sorted(share) for share in shares)


@given(SIZES, st.integers(1, 12))
def test_nobody_has_much_more_than_it_must(sizes: list[int], ranks: int) -> None:
    loads = [sum(sizes[place] for place in share) for share in divide(sizes, ranks)]
    best = max(sum(sizes) / ranks, max(sizes, default=0))
    assert max(loads) <= 4 / 3 * best + max(sizes, default=0) / 3


def test_equal_tensors_are_dealt_out_evenly() -> None:
    assert divide([8] * 6, 3) == ((0, 3), (1, 4), (2, 5))


def test_nobody_cannot_save() -> None:
    with pytest.raises(ValueError, match="0 ranks"):
        divide([1], 0)

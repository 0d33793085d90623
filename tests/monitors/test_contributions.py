"""Who adds far more to the sum than its peers is named; who is merely larger, or one of many, is not."""

from math import inf, nan

from everstep.monitors.consensus import Agree, Attributed
from everstep.monitors.contributions import FACTOR, too_large
from hypothesis import given
from hypothesis import strategies as st

healthy = st.lists(st.floats(1.0, 3.0), min_size=3, max_size=12)


@given(healthy, st.floats(1e-12, 1e12))
def test_healthy_contributions_agree_at_any_size(norms: list[float], size: float) -> None:
    assert isinstance(too_large({place: norm * size for place, norm in enumerate(norms)}), Agree)


@given(healthy, st.integers(0, 11), st.floats(3 * FACTOR + 1, 1e12))
def test_one_far_above_is_named_and_nobody_else(norms: list[float], place: int, times: float) -> None:
    place %= len(norms)
    held = dict(enumerate(norms))
    held[place] *= times
    verdict = too_large(held)
    assert isinstance(verdict, Attributed)
    assert verdict.ranks == (place,)
    assert f"rank {place} adds" in verdict.reason


@given(healthy)
def test_who_adds_nothing_or_nothing_finite_is_left_out(norms: list[float]) -> None:
    held = {**dict(enumerate(norms)), 100: 0.0, 101: inf, 102: nan}
    verdict = too_large(held)
    assert isinstance(verdict, Agree)
    assert verdict.evidence.keys() == dict(enumerate(norms)).keys()


def test_two_peers_and_an_even_split_name_nobody() -> None:
    assert isinstance(too_large({0: 1.0, 1: 1e9}), Agree)
    assert isinstance(too_large({0: 1.0, 1: 1.0, 2: 1e9, 3: 1e9}), Agree)

"""The exact grid: sums that nobody's order or share can change, against whole fractions."""

import math
import random
from fractions import Fraction

import pytest
import torch
from everstep.actors.rank import grid
from hypothesis import assume, given, settings
from hypothesis import strategies as st

batch_sizes = st.integers(1, 300)
gradients = st.floats(-(2.0**40), 2.0**40, width=32)


def on_grid(value: float, exponent: int) -> torch.Tensor:
    """As the gradient sum does it: scaled and rounded in float32, added in float64."""
    return torch.tensor([value], dtype=torch.float32).mul_(2.0**-exponent).round_().to(torch.float64)


def exact(value: float, exponent: int) -> Fraction:
    """The nearest multiple of 2^exponent, ties to even, in whole numbers."""
    return Fraction(round(Fraction(value) / Fraction(2) ** exponent))


@given(st.lists(gradients, min_size=1, max_size=24), st.randoms(use_true_random=False))
def test_sums_are_exact_in_any_order_and_any_split(values: list[float], order: random.Random) -> None:
    exponent = grid.exponent(max(map(abs, values)) or 1.0, len(values))
    multiples = [on_grid(value, exponent) for value in values]
    expected = sum((exact(value, exponent) for value in values), Fraction(0))
    for _ in range(3):
        order.shuffle(multiples)
        cut = order.randrange(len(multiples) + 1)
        shares = [multiples[:cut], multiples[cut:]]
        sums = [sum(share, torch.zeros(1, dtype=torch.float64)) for share in shares]
        assert Fraction(float(sums[0] + sums[1])) == expected


@given(batch_sizes, st.floats(2.0**-60, 2.0**60), st.integers(0, 200))
def test_the_largest_that_fits_still_sums_exactly(microbatches: int, maximum: float, few: int) -> None:
    """Every microbatch at the very edge, one of them odd: the sum is still below 2^53."""
    exponent = grid.exponent(maximum, microbatches)
    edge = 2.0 ** grid.capacity_bits(microbatches)
    assert grid.fits(math.ldexp(edge, exponent), exponent, microbatches)
    total = 0.0
    for place in range(microbatches):
        total += edge - (place == few)
    assert int(total) == microbatches * int(edge) - (few < microbatches)
    assert total <= 2.0**53


@given(batch_sizes, st.integers(-100, 100))
def test_the_edge_of_what_fits(microbatches: int, exponent: int) -> None:
    edge = math.ldexp(2.0 ** grid.capacity_bits(microbatches), exponent)
    assert grid.fits(edge, exponent, microbatches)
    assert grid.fits(0.0, exponent, microbatches)
    assert not grid.fits(math.nextafter(edge, math.inf), exponent, microbatches)
    assert not grid.fits(math.inf, exponent, microbatches)
    assert not grid.fits(math.nan, exponent, microbatches)


@given(batch_sizes, st.floats(2.0**-60, 2.0**60))
def test_a_maximum_may_grow_by_the_headroom(microbatches: int, maximum: float) -> None:
    exponent = grid.exponent(maximum, microbatches)
    assert grid.fits(maximum * 2.0**grid.HEADROOM_BITS, exponent, microbatches)
    assert not grid.fits(maximum * 2.0 ** (grid.HEADROOM_BITS + 1), exponent - 1, microbatches)


@given(batch_sizes, st.floats(2.0**-60, 2.0**60))
def test_the_grid_keeps_more_than_float32_does(microbatches: int, maximum: float) -> None:
    """The step of the grid against the spacing of float32 at the largest gradient of a batch of 300."""
    exponent = grid.exponent(maximum, microbatches)
    spacing = math.ldexp(1.0, math.frexp(maximum)[1] - 24)
    assert math.ldexp(1.0, exponent) <= spacing / 2**9


@given(batch_sizes, st.floats(2.0**-60, 2.0**60), st.floats(2.0**-60, 2.0**60))
def test_a_larger_maximum_has_no_finer_grid(microbatches: int, first: float, second: float) -> None:
    low, high = sorted((first, second))
    assert grid.exponent(low, microbatches) <= grid.exponent(high, microbatches)


def test_exponents_stay_within_what_float32_can_scale_by() -> None:
    for maximum in (0.0, 1e-45, 2.0**-126, 1.0, 3.4e38):
        exponent = grid.exponent(maximum, 8)
        assert grid.LOWEST <= exponent <= grid.HIGHEST
        assert torch.tensor(2.0**-exponent, dtype=torch.float32).isfinite()
        assert grid.fits(maximum, exponent, 8)


@pytest.mark.parametrize("maximum", [math.inf, math.nan, -1.0])
def test_a_maximum_that_is_none_is_refused(maximum: float) -> None:
    with pytest.raises(ValueError, match="must be finite and not negative"):
        grid.exponent(maximum, 8)


def test_the_first_grid_takes_what_is_usual() -> None:
    for microbatches in (1, 8, 512):
        assert grid.fits(grid.FIRST_MAXIMUM, grid.first_exponent(microbatches), microbatches)


@given(st.lists(st.floats(0, 2.0**60), min_size=1, max_size=6), batch_sizes, st.integers(-60, 60))
def test_one_void_attempt_is_enough(maxima: list[float], microbatches: int, held: int) -> None:
    """What did not fit gets a grid that fits it; what did fit keeps its own."""
    current = [held] * len(maxima)
    raised = grid.next_exponents(maxima, current, microbatches, committed=False)
    for maximum, before, after in zip(maxima, current, raised, strict=True):
        assert grid.fits(maximum, after, microbatches)
        if grid.fits(maximum, before, microbatches):
            assert after == before
        else:
            assert after > before


@given(st.lists(st.floats(0, 2.0**60), min_size=1, max_size=6), batch_sizes, st.integers(-60, 60))
def test_after_a_commit_the_grid_follows_the_maxima_alone(maxima: list[float], microbatches: int, held: int) -> None:
    current = [held] * len(maxima)
    fitted = grid.next_exponents(maxima, current, microbatches, committed=True)
    assert fitted == grid.next_exponents(list(maxima), list(current), microbatches, committed=True)
    for maximum, before, after in zip(maxima, current, fitted, strict=True):
        # A parameter that nobody touched keeps its grid: 0 says nothing of the next gradient.
        assert after == (before if maximum == 0 else grid.exponent(maximum, microbatches))


def test_every_parameter_needs_a_maximum() -> None:
    with pytest.raises(ValueError, match="zip"):
        grid.next_exponents([1.0], [0, 0], 8, committed=True)


@settings(max_examples=300)
@given(st.floats(width=32, allow_nan=False, allow_infinity=False), st.integers(-120, 120))
def test_scaling_by_a_power_of_two_in_float32_loses_nothing_that_the_grid_keeps(value: float, exponent: int) -> None:
    assume(grid.fits(abs(value), exponent, 1))
    assert Fraction(float(on_grid(value, exponent))) == exact(value, exponent)

"""The fused fold and the tensor operations do the same, to the bit; without a compiler training goes on alike."""

import shutil
from pathlib import Path

import pytest
import torch
from everstep.actors.rank import gradients, kernel
from everstep.actors.rank.gradients import GradientSum
from everstep.conf.elastic import Reduction
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from .small_model import UNEVEN, assert_same_bits, trained

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler on this machine")
values = st.floats(width=32, allow_nan=False, min_value=-(2.0**60), max_value=2.0**60)


@needs_compiler
@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(values, min_size=5, max_size=5), min_size=1, max_size=4), st.integers(-60, 40))
def test_it_rounds_and_adds_like_tensors(folds: list[list[float]], exponent: int) -> None:
    fused = kernel.fused_kernel()
    assert fused is not None
    scale = 2.0**-exponent
    total, expected = torch.empty(5, dtype=torch.float64), torch.zeros(5, dtype=torch.float64)
    for place, fold in enumerate(folds):
        gradient = torch.tensor(fold, dtype=torch.float32)
        peak = fused.fold(gradient, total, scale, place == 0)
        assert peak == float(gradient.abs().max())
        expected += (gradient * scale).round()
    assert torch.equal(total, expected)


@needs_compiler
@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.lists(st.integers(-(2**50), 2**50), min_size=6, max_size=6), min_size=1, max_size=5),
    st.integers(-60, 40),
    st.floats(1e-3, 1e6),
    st.integers(0, 5),
    st.integers(0, 5),
)
def test_it_averages_like_tensors(rows: list[list[int]], exponent: int, weight: float, one: int, other: int) -> None:
    fused = kernel.fused_kernel()
    assert fused is not None
    begin, end = min(one, other), max(one, other)
    parts = torch.tensor(rows, dtype=torch.float64)
    mean = torch.full((6,), -1.0)
    fused.mean(parts, begin, end, 2.0**exponent, weight, mean)
    expected = torch.full((6,), -1.0)
    expected[begin:end] = ((parts.sum(dim=0) * 2.0**exponent) / weight).to(torch.float32)[begin:end]
    assert torch.equal(mean, expected)
    assert torch.equal(parts, torch.tensor(rows, dtype=torch.float64)), "accumulators are only read"


@needs_compiler
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_the_largest(bad: float) -> None:
    fused = kernel.fused_kernel()
    assert fused is not None
    gradient = torch.full((9000,), 3e38)
    gradient[5000] = bad
    peak = fused.fold(gradient, torch.zeros(9000, dtype=torch.float64), 1.0, True)
    assert not torch.tensor(peak).isfinite()


@needs_compiler
def test_both_ways_give_the_same_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    fused = _sums()
    means = trained((3, 3, 2), Reduction.EXACT, UNEVEN)
    monkeypatch.setattr(gradients, "fused_kernel", lambda: None)
    assert _sums() == fused
    for held, other in zip(trained((3, 3, 2), Reduction.EXACT, UNEVEN), means, strict=True):
        assert_same_bits(held, other)


def test_without_a_compiler_there_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    kernel.fused_kernel.cache_clear()
    try:
        assert kernel.fused_kernel() is None
    finally:
        kernel.fused_kernel.cache_clear()


def test_a_compiler_that_fails_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(shutil, "which", lambda _: "/bin/false")
    kernel.fused_kernel.cache_clear()
    try:
        assert kernel.fused_kernel() is None
    finally:
        kernel.fused_kernel.cache_clear()


def _sums() -> list[float]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(7, 300), nn.ReLU(), nn.Linear(300, 3))
    summed = GradientSum(dict(model.named_parameters()), Reduction.EXACT, 4, 10_000, 1)
    for _ in range(3):
        model(torch.randn(5, 7)).square().mean().backward()
        summed.fold()
    return [float(value) for bucket in summed._buckets for value in bucket.sums]

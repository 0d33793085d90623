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

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler on this machine")
values = st.floats(width=32, allow_nan=False, min_value=-(2.0**60), max_value=2.0**60)


@needs_compiler
@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(values, min_size=5, max_size=5), min_size=1, max_size=4), st.integers(-60, 40))
def test_it_rounds_and_adds_like_tensors(folds: list[list[float]], exponent: int) -> None:
    fused = kernel.fused_fold()
    assert fused is not None
    scale = 2.0**-exponent
    total, expected = torch.empty(5, dtype=torch.float64), torch.zeros(5, dtype=torch.float64)
    for place, fold in enumerate(folds):
        gradient = torch.tensor(fold, dtype=torch.float32)
        peak = fused(gradient, total, scale, place == 0)
        assert peak == float(gradient.abs().max())
        expected += (gradient * scale).round()
    assert torch.equal(total, expected)


@needs_compiler
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_the_largest(bad: float) -> None:
    fused = kernel.fused_fold()
    assert fused is not None
    gradient = torch.full((9000,), 3e38)
    gradient[5000] = bad
    peak = fused(gradient, torch.zeros(9000, dtype=torch.float64), 1.0, True)
    assert not torch.tensor(peak).isfinite()


@needs_compiler
def test_both_ways_give_the_same_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _sums() == _sums()
    fused = _sums()
    monkeypatch.setattr(gradients, "fused_fold", lambda: None)
    assert _sums() == fused


def test_without_a_compiler_there_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    kernel.fused_fold.cache_clear()
    try:
        assert kernel.fused_fold() is None
    finally:
        kernel.fused_fold.cache_clear()


def test_a_compiler_that_fails_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(shutil, "which", lambda _: "/bin/false")
    kernel.fused_fold.cache_clear()
    try:
        assert kernel.fused_fold() is None
    finally:
        kernel.fused_fold.cache_clear()


def _sums() -> list[float]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(7, 300), nn.ReLU(), nn.Linear(300, 3))
    summed = GradientSum(dict(model.named_parameters()), Reduction.EXACT, 4, 10_000, 1)
    for _ in range(3):
        model(torch.randn(5, 7)).square().mean().backward()
        summed.fold()
    return [float(value) for bucket in summed._buckets for value in bucket.sums]

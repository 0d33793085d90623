"""Against the plain singular values."""

import math

import pytest
import torch
from everstep.monitors.spectrum import spectra
from hypothesis import given
from hypothesis import strategies as st


@given(st.integers(1, 9), st.integers(1, 9), st.sampled_from([1.0, 2.0, 3.0]), st.integers(0, 99))
def test_as_from_singular_values(rows: int, columns: int, alpha: float, seed: int) -> None:
    matrix = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    found = spectra(matrix[None], alpha)[0]
    values = torch.linalg.svdvals(matrix)
    shares = values**alpha / (values**alpha).sum()
    entropy = float(-(shares * shares.log()).sum())
    assert found.norm == pytest.approx(float(values.norm()))
    assert found.stable_rank == pytest.approx(float(values.square().sum() / values[0] ** 2))
    assert found.entropy == pytest.approx(entropy, abs=1e-6)
    assert found.effective_rank == pytest.approx(math.exp(entropy), rel=1e-6)


def test_scale_changes_the_norm_alone() -> None:
    matrix = torch.randn(5, 4, dtype=torch.float32, generator=torch.Generator().manual_seed(0))
    large, tiny = spectra(torch.stack([matrix, matrix * 1e-30]))
    assert tiny.norm == pytest.approx(large.norm * 1e-30, rel=1e-5)
    assert tiny.entropy == pytest.approx(large.entropy, rel=1e-4)


def test_zeros_and_what_is_not_finite_leave_the_others_alone() -> None:
    zero, broken, one = spectra(torch.stack([torch.zeros(3, 3), torch.full((3, 3), torch.nan), torch.eye(3)]))
    assert (zero.norm, zero.stable_rank, zero.entropy, zero.effective_rank) == (0, 0, 0, 0)
    assert all(map(math.isnan, (broken.norm, broken.stable_rank, broken.entropy, broken.effective_rank)))
    assert one.effective_rank == pytest.approx(3)


def test_alpha_must_be_above_0() -> None:
    with pytest.raises(ValueError, match="alpha is 0"):
        spectra(torch.eye(2)[None], 0)

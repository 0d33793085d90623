"""The shape of a spectrum: how large a matrix is, and over how many directions it is spread."""

from dataclasses import dataclass

import torch
from torch import Tensor

# Of the spectral entropy; the power that arXiv 2606.28116 reports as a compromise of sensitivity and noise.
ALPHA = 2.0


@dataclass(frozen=True)
class Spectrum:
    """Numbers of the singular values s of one matrix; all are 0 for a matrix of zeros, NaN for one that is not finite.

    Attributes:
        norm: Frobenius norm.
        stable_rank: squared Frobenius norm over squared largest singular value.
        entropy: of p_i = s_i^alpha / sum_j s_j^alpha, in nats.
        effective_rank: exp(entropy).
    """

    norm: float
    stable_rank: float
    entropy: float
    effective_rank: float


def spectra(matrices: Tensor, alpha: float = ALPHA) -> list[Spectrum]:
    """The spectrum of each matrix of a batch.

    Only the smaller Gram matrix is decomposed. Singular values below the square root of the rounding error of the
    largest are lost by that; with alpha = 2 they weigh nothing.

    Args:
        matrices: shape (batch, rows, columns), float32 or float64.
        alpha: power of the singular values in the entropy, above 0.

    Raises:
        ValueError: for an alpha that is not above 0.
    """
    if not alpha > 0:
        raise ValueError(f"alpha is {alpha}; it must be above 0")
    finite = matrices.isfinite().all(dim=(-2, -1))
    largest = matrices.abs().amax(dim=(-2, -1))
    # Of entries near 1: squares of tiny updates would fall under the smallest number of float32.
    unit = torch.where(finite & (largest > 0), largest, torch.ones_like(largest))[:, None, None]
    scaled = torch.where(finite[:, None, None], matrices, torch.zeros_like(matrices)) / unit
    gram = scaled.mT @ scaled if scaled.shape[-2] >= scaled.shape[-1] else scaled @ scaled.mT
    squares = torch.linalg.eigvalsh(gram).clamp_min(0)
    total, top = squares.sum(-1), squares.amax(-1)
    weights = (squares / top.where(top > 0, torch.ones_like(top))[:, None]) ** (alpha / 2)
    shares = weights / weights.sum(-1, keepdim=True).clamp_min(torch.finfo(weights.dtype).tiny)
    entropy = torch.special.entr(shares).sum(-1)
    norm = total.sqrt() * unit[:, 0, 0]
    stable = total / top.where(top > 0, torch.ones_like(top))
    effective = torch.where(top > 0, entropy.exp(), torch.zeros_like(entropy))
    table = torch.stack([norm, stable, entropy, effective], dim=-1)
    table = torch.where(finite[:, None], table, torch.full_like(table, torch.nan))
    return [Spectrum(*row) for row in table.tolist()]

"""What destabilises a training, on purpose: biased arithmetic, too high a rate, a misled router."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from everstep.examples.gpt import CausalSelfAttention
from torch import Tensor, nn

# Explicit bits of the significand of bfloat16, and keys between two roundings of the sum, a tile of fused kernels.
BITS, TILE = 7, 16


@dataclass(frozen=True)
class Fault:
    """What is wrong from one step on.

    Attributes:
        error: by how much the rounding errors of attention are magnified; 1 is bfloat16 as it is, 0 none.
        rate: factor of the learning rate, which grows to there as in a warm-up that does not end in time.
        jumps: it has that factor at once.
        balance: weight of the load balancing loss; None leaves it. A negative one rewards that one expert has it all.
        flip: one bit of one weight flips, once.
    """

    error: float = 0.0
    rate: float = 1.0
    jumps: bool = False
    balance: float | None = None
    flip: bool = False


def rounded(values: Tensor, how: Callable[[Tensor], Tensor]) -> Tensor:
    """To the bits of bfloat16; ``how`` is torch.round for the nearest, torch.floor for always down."""
    significand, exponent = torch.frexp(values)
    return torch.ldexp(how(significand * 2 ** (BITS + 1)), exponent - (BITS + 1))


class BiasedAttention(torch.autograd.Function):
    """Attention whose sum of P V is rounded as arXiv 2510.04212 explains that it goes wrong in bfloat16.

    A fused kernel sums unnormalised P, whose largest entries are 1, times V, tile by tile. In rows in which several
    scores tie at the maximum, several P are exactly 1 and the errors of these sums are one-sided; here such a sum is
    rounded down, others to the nearest. The backward uses the output for its row sums, sum(dO * O), so that an error
    that has one sign in the output has one in the gradient of the scores, too.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, error: float) -> Tensor:
        """All of shape (..., length, size)."""
        scale = 1 / math.sqrt(query.shape[-1])
        length = query.shape[-2]
        hidden = torch.ones(length, length, dtype=torch.bool, device=query.device).triu(1)
        scores = (query @ key.mT * scale).masked_fill(hidden, -math.inf)
        raw = (scores - scores.amax(-1, keepdim=True)).exp()
        total = raw.sum(-1, keepdim=True)
        shares = raw / total
        exact = shares @ value
        p = rounded(raw, torch.round)
        tied = (p == 1).sum(-1, keepdim=True) > 1
        summed = torch.zeros_like(exact)
        for first in range(0, length, TILE):
            part = slice(first, first + TILE)
            summed = summed + p[..., part] @ value[..., part, :]
            summed = torch.where(tied, rounded(summed, torch.floor), rounded(summed, torch.round))
        output = exact + error * (summed / total - exact)
        ctx.save_for_backward(query, key, value, shares, output)
        ctx.scale = scale
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """As a fused kernel does it."""
        query, key, value, shares, output = ctx.saved_tensors
        (given,) = gradients
        along = (given * output).sum(-1, keepdim=True)
        scores = shares * (given @ value.mT - along) * ctx.scale
        return scores @ key, scores.mT @ query, shares.mT @ given, None


class FaultyAttention(nn.Module):
    """The example's attention, with errors of a size that can be changed while it trains."""

    def __init__(self, attention: CausalSelfAttention) -> None:
        super().__init__()
        self.heads, self.error = attention.heads, 0.0
        self.qkv, self.output = attention.qkv, attention.output

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        if self.error:
            y = BiasedAttention.apply(query, key, value, self.error)
        else:
            y = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        merged: Tensor = self.output(y.transpose(1, 2).reshape(batch, length, width))
        return merged

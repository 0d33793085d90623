"""What the members of a step tell each other beside the gradients, as two small tensors, and what follows from it.

Every number has a slot of its own per microbatch, filled by the one rank that computed it, so sums over ranks are
exact and the result does not depend on who computed what. The census is complete before the vote is entered; so
everybody who entered the vote can tell the verdict, also one whose own vote broke.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .transaction import ProtocolError


@dataclass(frozen=True)
class Contribution:
    """One microbatch that is folded.

    Attributes:
        weight: of its loss in the step's mean.
        loss: scalar, on the device: reading it would make the host wait, so it is read with the census.
        peak: largest |gradient|, scalar, on the device; +inf if one is not finite.
    """

    weight: float
    loss: Tensor
    peak: Tensor

    def row(self) -> tuple[float, float, float, float]:
        """Count, weight, loss, and whether something is not finite. Weight 0 contributes nothing, not 0 times NaN."""
        if self.weight == 0:
            return 1.0, 0.0, 0.0, 0.0
        loss = float(self.loss)
        finite = math.isfinite(loss) and math.isfinite(float(self.peak))
        return 1.0, self.weight, loss if finite else 0.0, float(not finite)


@dataclass(frozen=True)
class Census:
    """All of a step, as every member sees it.

    Attributes:
        weights: by microbatch.
        losses: by microbatch.
        nonfinite: indices whose contribution is not finite.
        touched: by parameter.
        maxima: by parameter, largest |weighted gradient| of one microbatch.
    """

    weights: tuple[float, ...]
    losses: tuple[float, ...]
    nonfinite: tuple[int, ...]
    touched: list[bool] = field(default_factory=list)
    maxima: list[float] = field(default_factory=list)

    @property
    def weight(self) -> float:
        return math.fsum(self.weights)

    @property
    def loss(self) -> float:
        """Weighted mean over the step; the same bits on every rank and for every split."""
        if self.weight == 0:
            return math.nan
        pairs = zip(self.weights, self.losses, strict=True)
        return math.fsum(weight * loss for weight, loss in pairs if weight) / self.weight


def fill(contributions: dict[int, Contribution], microbatches: int, touched: Sequence[bool]) -> Tensor:
    """The summed half: [count, weight, loss, non-finite] by microbatch, then touched by parameter. float64."""
    rows = torch.zeros(4, microbatches, dtype=torch.float64)
    for index, held in contributions.items():
        rows[:, index] = torch.tensor(held.row(), dtype=torch.float64)
    return torch.cat([rows.flatten(), torch.tensor([float(bit) for bit in touched], dtype=torch.float64)])


def read(summed: Tensor, maxima: Tensor, microbatches: int) -> Census:
    """The census after its two all-reduces.

    Raises:
        ProtocolError: a microbatch was not summed exactly once.
    """
    counts, weights, losses, nonfinite = summed[: 4 * microbatches].view(4, microbatches).tolist()
    wrong = {index: int(count) for index, count in enumerate(counts) if count != 1}
    if wrong:
        raise ProtocolError(f"microbatches were not summed exactly once: {wrong}")
    return Census(
        tuple(weights),
        tuple(losses),
        tuple(index for index, flag in enumerate(nonfinite) if flag),
        [bit > 0 for bit in summed[4 * microbatches :].tolist()],
        maxima.tolist(),
    )

"""Do the experts of a mixture still differ? Equations 7 and 8 of arXiv 2606.28116, and what routers decide."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .discovery import Router
from .reading import Reading


def read_routers(
    model: nn.Module, routers: Sequence[Router], step: int, gather: Callable[[Tensor], Tensor] | None = None
) -> tuple[Reading, ...]:
    """``similarity`` and ``conditioning`` of each router.

    Raises:
        ValueError: for a parameter that the model lacks, that is spread over ranks without ``gather``, or that has
            fewer than two rows.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    readings = []
    for router in routers:
        if router.parameter not in parameters:
            raise ValueError(f"{router.layer}: the model has no parameter {router.parameter}")
        held = parameters[router.parameter].detach()
        if gather is None and hasattr(held, "full_tensor"):
            raise ValueError(f"{router.parameter} is spread over ranks; give gather=lambda held: held.full_tensor()")
        rows = held if gather is None else gather(held)
        numbers = {"similarity": similarity(rows), "conditioning": conditioning(rows)}
        readings.append(Reading("router", step, router.layer, None, numbers))
    return tuple(readings)


def similarity(rows: Tensor) -> float:
    """Mean cosine of all pairs of rows; near 1 the experts cannot be told apart. Equation 7.

    Args:
        rows: shape (experts, d), a row an expert.

    Raises:
        ValueError: for fewer than two rows.
    """
    count = _experts(rows)
    mean = F.normalize(rows.double(), dim=-1).mean(0)
    return float((count * mean.square().sum() - 1) / (count - 1))


def conditioning(rows: Tensor) -> float:
    """The furthest row's distance from the mean row, over its norm; small if what is common rules. Equation 8.

    Args:
        rows: shape (experts, d), a row an expert.

    Raises:
        ValueError: for fewer than two rows.
    """
    _experts(rows)
    mean = rows.double().mean(0)
    # Nothing in common at all is infinitely well conditioned; IEEE division says so.
    return float((rows.double() - mean).norm(dim=-1).max() / mean.norm())


def decisions(logits: Tensor, layer: str, step: int, top: int) -> Reading:
    """What a router decided over some tokens.

    Args:
        logits: shape (..., experts), before the softmax.
        top: how many experts a token goes to.

    Returns:
        ``entropy``: of the full softmax, mean over tokens, over log(experts), in 0..1; ``load``: of the busiest expert,
        over its fair share: 1 if balanced, experts / top if all tokens go there.

    Raises:
        ValueError: for no tokens, fewer than two experts, or a ``top`` that is not among them.
    """
    flat = logits.detach().flatten(0, -2).double() if logits.dim() > 1 else logits.detach()[None].double()
    count = flat.shape[-1]
    if count < 2 or not len(flat) or not 1 <= top <= count:
        raise ValueError(f"{layer}: logits of shape {tuple(logits.shape)} say nothing of the top {top} of experts")
    entropy = torch.special.entr(flat.softmax(-1)).sum(-1).mean() / math.log(count)
    busiest = torch.bincount(flat.topk(top, -1).indices.flatten(), minlength=count).max()
    load = float(busiest) * count / (len(flat) * top)
    return Reading("router", step, layer, None, {"entropy": float(entropy), "load": load})


def _experts(rows: Tensor) -> int:
    if rows.dim() != 2 or len(rows) < 2:
        raise ValueError(f"a router has a matrix of shape {tuple(rows.shape)}; it needs two rows or more")
    return len(rows)

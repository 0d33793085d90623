"""What people watch today, as readings, to compare with: loss, gradients, weights, the largest attention score."""

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from .attention import Sample
from .reading import Reading

# So many queries at once: their scores are formed, those of all are not.
_QUERIES = 256


def read_scalars(step: int, numbers: Mapping[str, float]) -> Reading:
    """Numbers of the whole model that somebody else has measured: ``loss``, ``gradient_norm``, whatever."""
    return Reading("baseline", step, "", None, dict(numbers))


def gradient_norm(parameters: Iterable[Tensor]) -> float:
    """Of all gradients together, in float64; 0 if there are none."""
    return _norm(held.grad for held in parameters if held.grad is not None)


def weight_norm(parameters: Iterable[Tensor]) -> float:
    """Of all parameters together, in float64."""
    return _norm(parameters)


def copied(model: nn.Module) -> dict[str, Tensor]:
    """Owned copies of all parameters, for ``update_ratio``."""
    return {name: held.detach().clone() for name, held in model.named_parameters()}


def update_ratio(before: Mapping[str, Tensor], model: nn.Module) -> float:
    """Norm of what was added since ``before``, over the norm of the weights then.

    Raises:
        ValueError: if the model has other parameters now.
    """
    now = dict(model.named_parameters())
    if now.keys() != before.keys():
        raise ValueError(f"{min(now.keys() ^ before.keys())} is not on both sides of the update")
    return _norm(now[name].detach().double() - held.double() for name, held in before.items()) / _norm(before.values())


def update_ratios(before: Sample, after: Sample) -> tuple[Reading, ...]:
    """The same of queries and keys together, for each head of ``after``: ``update_ratio``.

    Raises:
        KeyError: ``before`` lacks a head.
    """
    readings = []
    for (layer, head), now in after.heads.items():
        then = before.heads[layer, head]
        moved = _norm((now.query.double() - then.query.double(), now.key.double() - then.key.double()))
        ratio = moved / (_norm((then.query, then.key)) or math.inf)
        readings.append(Reading("baseline", after.step, layer, head, {"update_ratio": ratio}))
    return tuple(readings)


def max_attention_logit(query: Tensor, key: Tensor, *, causal: bool = True, scale: float | None = None) -> float:
    """The largest score that goes into the softmax.

    Args:
        query, key: as ``scaled_dot_product_attention`` takes them: (..., length, head_size); for grouped queries, with
            the keys repeated.
        causal: a query sees only its own position and those before it.
        scale: 1 / sqrt(head_size) by default.
    """
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    largest = -math.inf
    positions = torch.arange(key.shape[-2], device=key.device)
    with torch.no_grad():
        for first in range(0, query.shape[-2], _QUERIES):
            part = query[..., first : first + _QUERIES, :]
            scores = (part @ key.mT).float() * factor
            if causal:
                own = torch.arange(first, first + part.shape[-2], device=key.device)
                scores = scores.masked_fill(positions > own[:, None], -math.inf)
            found = float(scores.max())
            # A NaN is greater than nothing, and must not be lost.
            largest = found if math.isnan(found) else max(largest, found)
            if math.isnan(largest):
                break
    return largest


def _norm(tensors: Iterable[Tensor]) -> float:
    squares = [held.detach().double().square().sum() for held in tensors]
    return math.sqrt(sum(float(square) for square in squares))

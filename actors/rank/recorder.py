"""Makes the record of a step: its numbers, how long it took, and the learning rates that it really used."""

import time
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..messages import StepRecord
from .loop import Step

# A forward takes 2 FLOPs for each parameter and token, a backward twice as many.
FLOPS_PER_PARAMETER = 6


class Recorder:
    """Watches the optimizers of one rank.

    Args:
        optimizers: by name; one without a name goes by its class.
        flops_per_weight: model FLOPs of one unit of weight, forward and backward; None if nobody knows.
    """

    def __init__(self, optimizers: Mapping[str, torch.optim.Optimizer], flops_per_weight: float | None) -> None:
        self._optimizers = {name or type(optimizer).__name__: optimizer for name, optimizer in optimizers.items()}
        self._flops_per_weight = flops_per_weight
        self._rates = self._now()
        self._ended = time.monotonic()
        for name, optimizer in self._optimizers.items():
            # A scheduler has moved the rate on by the time the step has ended.
            optimizer.register_step_pre_hook(lambda used, *_, name=name: self._rates.update(_rates(name, used)))

    def record(self, step: Step, world: int) -> StepRecord:
        """The record of a step that has just ended."""
        now = time.monotonic()
        seconds, self._ended = now - self._ended, now
        # An optimizer that does nothing in the next step is said to have the rates with which that begins.
        rates, self._rates = self._rates, self._now()
        return StepRecord(
            step=step.number,
            loss=step.loss,
            weight=step.weight,
            seconds=seconds,
            lr=rates,
            numbers=step.numbers,
            skipped=step.skipped,
            microbatches=step.microbatches,
            world=world,
            at=time.time(),
            flops=None if self._flops_per_weight is None else self._flops_per_weight * step.weight,
            readings=step.readings,
        )

    def _now(self) -> dict[str, float]:
        rates: dict[str, float] = {}
        for name, optimizer in self._optimizers.items():
            rates.update(_rates(name, optimizer))
        return rates


def estimated_flops(parameters: Iterable[Tensor]) -> float:
    """Model FLOPs of a token, forward and backward: six for each parameter.

    The usual estimate (Kaplan et al. 2020, arXiv:2001.08361, section 2.1). It leaves out attention over the context,
    and counts embeddings, which the paper does not.
    """
    return float(FLOPS_PER_PARAMETER * sum(parameter.numel() for parameter in parameters))


def _rates(name: str, optimizer: torch.optim.Optimizer) -> dict[str, float]:
    groups: list[dict[str, Any]] = optimizer.param_groups
    if len(groups) == 1:
        return {name: float(groups[0]["lr"])}
    return {f"{name}/{group.get('name', index)}": float(group["lr"]) for index, group in enumerate(groups)}

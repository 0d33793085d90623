"""Puts planned faults inside the user's own code: in the forward, in the backward, in the optimizer."""

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from ...conf.chaos import FaultPoint
from ..faults import Chaos
from .engine import Engine
from .flips import Flips


def arm(
    chaos: Chaos, engine: Engine, models: Mapping[str, nn.Module], optimizers: Sequence[torch.optim.Optimizer]
) -> Flips:
    """Hook the middle module, the middle parameter and every optimizer; only for ranks with planned faults."""
    modules = [module for model in models.values() for module in model.modules()]
    parameters = [held for model in models.values() for held in model.parameters() if held.requires_grad]

    def in_forward(*_: object) -> None:
        chaos.at(FaultPoint.IN_FORWARD)

    def in_backward(_: torch.Tensor) -> None:
        chaos.at(FaultPoint.IN_BACKWARD)
        if engine.extending:
            chaos.at(FaultPoint.IN_EXTENSION)

    def in_optimizer(*_: object) -> None:
        chaos.at(FaultPoint.IN_OPTIMIZER)

    modules[len(modules) // 2].register_forward_hook(in_forward)
    parameters[len(parameters) // 2].register_post_accumulate_grad_hook(in_backward)
    for optimizer in optimizers:
        optimizer.register_step_pre_hook(in_optimizer)
    flips = Flips(chaos, models)
    flips.arm(models, optimizers)
    return flips

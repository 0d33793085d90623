"""What the training functions of these tests share."""

import random
import sys
from typing import Any

import numpy as np
import torch
from ray import cloudpickle
from torch import Tensor, nn
from torch.nn import functional

# Ranks are other processes and cannot import the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

WIDTH = 8


class Samples(torch.utils.data.Dataset):
    """Vectors with a number that is their id."""

    def __init__(self, length: int = 31) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, item: int) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(item)
        return {"id": item, "x": torch.randn(WIDTH, generator=generator), "y": torch.randn(2, generator=generator)}


def mlp(*inner: nn.Module) -> nn.Sequential:
    """A model of two layers, with what is to be between them."""
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), *inner, nn.Linear(WIDTH, 2))


def mse(model: nn.Module, batch: dict[str, Any]) -> Tensor:
    return functional.mse_loss(model(batch["x"]), batch["y"])


def draws() -> list[float]:
    """One number of each stream."""
    return [float(torch.rand(())), float(np.random.rand()), random.random()]


def gradients(model: nn.Module) -> dict[str, Tensor | None]:
    return {name: parameter.grad for name, parameter in model.named_parameters()}

"""What all tests of ranks share."""

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from .rank_bench import Bench, train


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As every rank computes by default."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(4)
    return nn.Linear(3, 1)


@pytest.fixture
def undisturbed(model: nn.Module) -> list[list[torch.Tensor]]:
    return train(Bench(model=copy.deepcopy(model)).open())

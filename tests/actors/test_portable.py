"""What a rank's training consists of, read from one set of objects and written to another."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from everstep.actors.rank.buffers import Buffers
from everstep.actors.rank.gradients import GradientSum
from everstep.actors.rank.portable import Portable, load_optimizer
from everstep.conf.elastic import Buffers as Mode
from everstep.conf.elastic import Reduction
from everstep.conf.errors import HandoverError
from torch import nn


class Tied(nn.Module):
    """Tied weights, a buffer that is kept and one that is not."""

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.one = nn.Linear(width, width, bias=False)
        self.two = nn.Linear(width, width)
        self.two.weight = self.one.weight
        self.register_buffer("seen", torch.zeros(width))
        self.register_buffer("cache", torch.zeros(2), persistent=False)


class Held:
    """All objects of one rank."""

    def __init__(self, width: int = 3) -> None:
        self.model = Tied(width)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, 0.5)
        self.buffers = Buffers({"": self.model}, Mode.FOLD)
        parameters = {**self.buffers.shadows, **dict(self.model.named_parameters())}
        self.gradients = GradientSum(parameters, Reduction.EXACT, 4, 1024, 1)
        kept: Mapping[str, Any] = {"optimizer": self.optimizer, "scheduler": self.scheduler}
        self.portable = Portable({"": self.model}, kept, self.buffers, self.gradients)

    def train(self) -> "Held":
        for parameter in self.model.parameters():
            parameter.grad = torch.randn_like(parameter)
        self.optimizer.step()
        self.scheduler.step()
        self.gradients.advance([3.0] * len(self.gradients.names), committed=True)
        self.model.seen += 2
        self.model.cache += 3
        self.model.two.bias.requires_grad_(False)
        self.buffers.begin()
        return self


def test_everything_is_taken_over() -> None:
    torch.manual_seed(5)
    source, other = Held().train(), Held()
    other.portable.write(source.portable.read())
    theirs, mine = source.model.state_dict(), other.model.state_dict()
    assert all(torch.equal(theirs[name], mine[name]) for name in theirs)
    assert torch.equal(other.model.cache, torch.full((2,), 3.0))
    assert other.model.one.weight is other.model.two.weight
    assert not other.model.two.bias.requires_grad
    assert other.optimizer.param_groups[0]["lr"] == source.optimizer.param_groups[0]["lr"] == 5e-4
    assert other.scheduler.last_epoch == 1
    assert other.gradients.exponents == source.gradients.exponents != Held().gradients.exponents
    for parameter, peer in zip(other.model.parameters(), source.model.parameters(), strict=True):
        for name, value in source.optimizer.state[peer].items():
            assert torch.equal(other.optimizer.state[parameter][name], value), name


def test_buffers_are_those_that_the_step_begins_with() -> None:
    source, other = Held().train(), Held()
    # A forward that is under way has changed one in place and replaced another.
    source.model.seen += 100
    source.model.cache = torch.full((2,), 100.0)
    other.portable.write(source.portable.read())
    assert torch.equal(other.model.seen, torch.full((3,), 2.0))
    assert torch.equal(other.model.cache, torch.full((2,), 3.0))
    assert torch.equal(other.buffers.values["seen"], torch.full((3,), 2.0))


def test_another_model_is_refused_in_one_line() -> None:
    source = Held().train()
    with pytest.raises(HandoverError, match=r"does not fit what was built here: .*size mismatch") as caught:
        Held(width=4).portable.write(source.portable.read())
    assert "\n" not in str(caught.value)


def test_the_size_counts_what_is_there_and_what_optimizers_will_add() -> None:
    held = Held()
    before = held.portable.nbytes
    # One weight under two names, a bias, a buffer that is kept; two moments for each of two parameters.
    assert before == 4 * (9 + 9 + 3 + 3) + 4 * 2 * (9 + 3)
    # Each has a counter besides.
    assert held.train().portable.nbytes == before + 2 * 4


class Master(torch.optim.Optimizer):
    """float32 for parameters of any dtype, nested."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter] = {"master": parameter.detach().float() + 1e-4, "more": [{"sum": torch.ones(2)}, 3]}


def test_an_optimizer_keeps_its_dtypes() -> None:
    parameters = [nn.Parameter(torch.randn(4).to(torch.bfloat16)) for _ in range(2)]
    source, other = Master(parameters[:1]), Master(parameters[1:])
    source.step()
    load_optimizer(other, source.state_dict())
    held, expected = other.state[parameters[1]], source.state[parameters[0]]
    assert held["master"].dtype is torch.float32
    assert torch.equal(held["master"], expected["master"])
    assert held["more"][0]["sum"].dtype is torch.float32
    assert held["more"][1] == 3

"""A small model with every kind of parameter that is trouble, trained by hand on threads."""

import copy
import functools
from collections.abc import Sequence

import torch
from everstep.actors.faults import Chaos
from everstep.actors.rank.census import Contribution, Statement
from everstep.actors.rank.gradients import GradientSum
from everstep.conf.elastic import Reduction
from everstep.policies.world import Seat
from torch import Tensor, nn

from .exchange import ThreadCommunicator, together

B = 8
MAX_WORLD = 6
CALM = Chaos((), Seat(0), lambda fault, evidence: None)


class Model(nn.Module):
    """Odd sizes, a scalar, a transposed and a tied weight, one that nobody uses, one that only microbatch 5 uses."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(7, 5)
        self.tied = nn.Parameter(torch.randn(5, 5))
        self.turned = nn.Parameter(torch.randn(5, 3).t())
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.rare = nn.Parameter(torch.randn(11))
        self.never = nn.Parameter(torch.randn(4))

    def forward(self, index: int) -> Tensor:
        generator = torch.Generator().manual_seed(index)
        hidden = torch.tanh(self.first(torch.randn(6, 7, generator=generator)))
        hidden = torch.tanh(hidden @ self.tied) @ self.tied.t()
        loss = (hidden @ self.turned.t() * self.scale).square().mean()
        return loss + self.rare.square().sum() if index == 5 else loss


def build() -> Model:
    """The same weights every time, from any thread."""
    return copy.deepcopy(_template())


@functools.cache
def _template() -> Model:
    torch.manual_seed(3)
    return Model()


def gradient_sum(model: nn.Module, reduction: Reduction = Reduction.EXACT, bucket_bytes: int = 200) -> GradientSum:
    return GradientSum(dict(model.named_parameters()), reduction, B, bucket_bytes, MAX_WORLD)


def compute(model: nn.Module, gradients: GradientSum, indices: Sequence[int], weights: Sequence[float]) -> dict:
    """Fold these microbatches, as the step loop does it."""
    contributions = {}
    for index in indices:
        loss = model(index)
        loss.backward(torch.tensor(float(weights[index]), dtype=loss.dtype))
        contributions[index] = Contribution(weights[index], loss.detach(), gradients.fold())
    return contributions


def average(gradients: GradientSum, communicator: ThreadCommunicator, weight: float) -> None:
    """Exchange and gather, without a census."""
    gradients.exchange(communicator)
    gradients.gather(communicator, weight)


def finish(gradients: GradientSum, contributions: dict, communicator: ThreadCommunicator) -> None:
    """Reduce, take the census and publish."""
    statement = Statement(contributions, B, gradients.touched(), gradients.maxima())
    gradients.exchange(communicator)
    taken = statement.begin(communicator).finish(communicator)
    gradients.gather(communicator, taken.weight)
    assert not gradients.misfits(taken.maxima)
    gradients.publish(taken.touched)
    gradients.advance(taken.maxima, committed=True)


def grads_of(model: nn.Module) -> dict[str, Tensor | None]:
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def assert_same_bits(first: dict[str, Tensor | None], second: dict[str, Tensor | None]) -> None:
    assert list(first) == list(second)
    for name, gradient in first.items():
        other = second[name]
        if gradient is None or other is None:
            assert gradient is other, name
        else:
            assert torch.equal(gradient, other), f"{name} differs by {(gradient - other).abs().max()}"


def trained(split: Sequence[int], reduction: Reduction, weights: Sequence[float], **changes: int) -> list[dict]:
    """Gradients of every rank of a world of this split, over two steps so that the grid has moved once."""
    indices = list(range(B))
    shares = [indices[sum(split[:rank]) : sum(split[: rank + 1])] for rank in range(len(split))]

    def work(communicator: ThreadCommunicator) -> dict[str, Tensor | None]:
        model = build()
        gradients = gradient_sum(model, reduction, **changes)
        for _ in range(2):
            gradients.reset()
            contributions = compute(model, gradients, shares[communicator.rank], weights)
            finish(gradients, contributions, communicator)
        return grads_of(model)

    _template()
    return together(len(split), work)


EVEN = [1.0] * B
UNEVEN = [3.0, 0.25, 17.0, 1.0, 1e-3, 2.0, 100.0, 7.0]

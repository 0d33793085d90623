"""Buffers that a forward changes: refused by name, or averaged over the step like gradients."""

import copy

import pytest
import torch
from everstep.conf.elastic import Buffers as BufferMode
from everstep.conf.elastic import Reduction
from everstep.conf.errors import LoopError
from torch import nn

from .rank_bench import B, Bench, Dying, train, weights_of

both = pytest.mark.parametrize("reduction", list(Reduction))


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(4)
    return nn.Linear(3, 1)


class Counting(nn.Module):
    """Its buffers follow the data, as running statistics do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 1)
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("still", torch.ones(2), persistent=False)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        if self.training:
            with torch.no_grad():
                self.mean.mul_(0.5).add_(0.5 * data.mean(dim=0))  # type: ignore[operator]
                self.seen += 1  # type: ignore[operator]
        return self.inner(data - self.mean)  # type: ignore[no-any-return]


def test_a_buffer_that_a_forward_changes_is_refused_by_name() -> None:
    bench = Bench(model=Counting()).open()
    with pytest.raises(LoopError, match=r"the forward changed the buffer mean: .*elastic\.buffers=fold"):
        train(bench)


@both
def test_changes_of_buffers_are_averaged_like_gradients(reduction: Reduction) -> None:
    torch.manual_seed(1)
    start = Counting()
    bench = Bench(steps=2, model=copy.deepcopy(start), reduction=reduction, buffer_mode=BufferMode.FOLD).open()
    weights = (1.0, 2.0, 0.0, 3.0)
    train(bench, weights)
    mean = torch.zeros(3, dtype=torch.float64)
    for step in range(2):
        change = torch.zeros(3, dtype=torch.float64)
        for index, weight in enumerate(weights):
            first = 2 * (B * step + index)
            data = torch.tensor([[sample / 7, 1.0, -sample / 3] for sample in (first, first + 1)])
            moved = mean.float() * 0.5 + 0.5 * data.mean(dim=0)
            change += weight * (moved.double() - mean)
        mean += change / sum(weights)
    torch.testing.assert_close(bench.model.mean.double(), mean, rtol=1e-5, atol=1e-6)
    assert int(bench.model.seen) == 2, "once per step, not once per microbatch"  # type: ignore[arg-type]


def test_a_world_of_any_split_folds_buffers_alike() -> None:
    """The same microbatches in two generations: what a dead collective left is not applied."""
    torch.manual_seed(1)
    start = Counting()
    calm = Bench(steps=2, model=copy.deepcopy(start), buffer_mode=BufferMode.FOLD).open()
    train(calm)
    bench = Bench(steps=2, model=copy.deepcopy(start), buffer_mode=BufferMode.FOLD, communicators=[Dying(2), Dying(3)])
    bench.on_report = lambda report: bench.open(report.abandons.number + 1) and None
    train(bench.open())
    assert torch.equal(bench.model.mean, calm.model.mean)  # type: ignore[arg-type]
    assert all(torch.equal(a, b) for a, b in zip(weights_of(bench), weights_of(calm), strict=True))


def test_between_steps_a_user_may_change_a_buffer() -> None:
    model = Counting()
    model.eval()
    bench = Bench(steps=2, model=model).open()
    for step in bench.run:
        for batch in step:
            step.backward(bench.loss(batch))
        with torch.no_grad():
            model.mean += 1  # type: ignore[operator]
    assert bench.run.finished

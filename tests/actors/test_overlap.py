"""Buckets that are exchanged while the last backward still runs: earlier, in one order, and never too early."""

import copy
import warnings
from collections.abc import Callable, Sequence

import pytest
import torch
from everstep.actors.rank.gradients import GradientSum
from everstep.conf.elastic import Reduction
from everstep.conf.errors import CommunicatorError
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .exchange import FailingCommunicator, ThreadCommunicator, ThreadPending, together
from .small_model import UNEVEN, B, assert_same_bits, average, build, gradient_sum, grads_of, trained

both = pytest.mark.parametrize("reduction", list(Reduction))


class Watched(ThreadCommunicator):
    """Notes at each exchange which gradients the backward had made by then."""

    def __init__(self, communicator: ThreadCommunicator, seen: Callable[[], int]) -> None:
        super().__init__(communicator._exchange, communicator.rank)
        self._seen = seen
        self.at: list[int] = []

    def all_to_all(self, output: Tensor, source: Tensor) -> ThreadPending:
        self.at.append(self._seen())
        return super().all_to_all(output, source)


with torch.random.fork_rng():
    torch.manual_seed(3)
    _TEMPLATE = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))


def chain() -> nn.Sequential:
    """The same on every thread, whose random numbers are one stream."""
    return copy.deepcopy(_TEMPLATE)


def data(index: int) -> Tensor:
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(index))


def assert_mean_alone(
    gradients: GradientSum, model: nn.Sequential, indices: list[int], weight: float, late: Sequence[Tensor] = ()
) -> None:
    """A world of one reduces what is folded, and finds the mean gradient of these microbatches.

    Args:
        late: what threads of a dead group may still write into, at the worst moment.
    """
    together(1, lambda communicator: average(gradients, communicator, weight))
    for output in late:
        output.fill_(torch.nan)
    gradients.publish([True] * 6)
    expected = chain()
    (sum(expected(data(index)).sum() for index in indices) / weight).backward()  # type: ignore[union-attr]
    for parameter, other in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, other.grad)


@both
def test_a_bucket_leaves_as_soon_as_it_is_whole(reduction: Reduction) -> None:
    """One bucket a parameter; when the exchange begins, exactly the gradients before it are made."""

    def work(communicator: ThreadCommunicator) -> tuple[list[int], list[Tensor | None]]:
        model = chain()
        gradients = GradientSum(dict(model.named_parameters()), reduction, 4, 1, 2)
        made: list[Tensor] = []
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(made.append)
        watched = Watched(communicator, lambda: len(made))
        gradients.reset()
        for last, index in ((None, 2 * communicator.rank), (watched, 2 * communicator.rank + 1)):
            made.clear()
            with gradients.backward(last):
                model(data(index)).square().mean().backward()
            assert len(made) == 6
            gradients.fold()
        average(gradients, watched, 4.0)
        gradients.publish([True] * 6)
        return watched.at, [parameter.grad for parameter in model.parameters()]

    alone = chain()
    for index in range(4):
        (alone(data(index)).square().mean() / 4).backward()
    for at, grads in together(2, work):
        # Of one layer, the order in which bias and weight come is autograd's.
        assert all(0 <= seen <= 5 for seen in at), at
        assert at == sorted(at)
        assert at[0] < 2
        for grad, parameter in zip(grads, alone.parameters(), strict=True):
            torch.testing.assert_close(grad, parameter.grad)


@pytest.mark.parametrize("split", [(4, 4), (3, 3, 2), (7, 1), (8, 0)])
def test_early_exchange_changes_no_bit(split: tuple[int, ...]) -> None:
    """The model has parameters that only some microbatches use, so some buckets are whole only at the end."""
    indices = list(range(B))
    shares = [indices[sum(split[:rank]) : sum(split[: rank + 1])] for rank in range(len(split))]

    def work(communicator: ThreadCommunicator) -> dict[str, Tensor | None]:
        model = build()
        gradients = gradient_sum(model, bucket_bytes=100)
        for _ in range(2):
            gradients.reset()
            for index in shares[communicator.rank]:
                last = communicator if index == shares[communicator.rank][-1] else None
                with gradients.backward(last):
                    model(index).backward(torch.tensor(UNEVEN[index]))
                gradients.fold()
            average(gradients, communicator, sum(UNEVEN))
            maxima = gradients.maxima().clone()
            communicator.all_reduce(maxima, torch.distributed.ReduceOp.MAX).wait()
            touched = torch.tensor([float(bit) for bit in gradients.touched()])
            communicator.all_reduce(touched, torch.distributed.ReduceOp.SUM).wait()
            gradients.publish([bit > 0 for bit in touched.tolist()])
            gradients.advance(maxima.tolist(), committed=True)
        return grads_of(model)

    expected = trained((B,), Reduction.EXACT, UNEVEN)[0]
    for held in together(len(split), work):
        assert_same_bits(held, expected)


@both
def test_what_autograd_makes_in_parts_is_never_sent_too_early(reduction: Reduction) -> None:
    """A re-entrant checkpoint comes to a shared layer twice within one backward."""

    def once(model: nn.Sequential, index: int) -> Tensor:
        hidden = data(index).requires_grad_()
        for _ in range(2):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                hidden = checkpoint(model[0], hidden, use_reentrant=True)
        return model[4](hidden).square().mean()

    def work(communicator: ThreadCommunicator) -> tuple[int, list[Tensor | None]]:
        model = chain()
        gradients = GradientSum(dict(model.named_parameters()), reduction, 4, 1, 2)
        parts: list[Tensor] = []
        model[0].weight.register_post_accumulate_grad_hook(parts.append)
        broken = 0
        for _ in range(2):
            gradients.reset()
            # Rank 1 computes a single microbatch, so it knows nothing of the backward when it comes to its last one.
            for index in ([0, 1, 2], [3])[communicator.rank]:
                last = communicator if index in (2, 3) else None
                with gradients.backward(last):
                    once(model, index).backward()
                gradients.fold()
            try:
                average(gradients, communicator, 4.0)
            except CommunicatorError:
                broken += 1
            gradients.publish(gradients.touched())
        assert len(parts) == 2 * 2 * len(([0, 1, 2], [3])[communicator.rank]), "two in each backward"
        return broken, [parameter.grad for parameter in model.parameters()]

    alone = chain()
    for index in range(4):
        (once(alone, index) / 4).backward()
    for broken, grads in together(2, work):
        assert broken == 0
        for grad, parameter in zip(grads, alone.parameters(), strict=True):
            if parameter.grad is not None:
                torch.testing.assert_close(grad, parameter.grad)


def test_a_part_that_comes_after_all_breaks_the_group_not_the_sum() -> None:
    """A model that becomes irregular later: the group is left, and the sum is right in the next one."""
    model = chain()
    gradients = GradientSum(dict(model.named_parameters()), Reduction.EXACT, 1, 1, 2)
    gradients.reset()
    early = FailingCommunicator(2, 0, fails=10**6)
    with gradients.backward():
        model(data(0)).sum().backward()
    gradients.fold()
    gradients.reset()
    with gradients.backward(early):
        model(data(0)).sum().backward()
        model(data(1)).sum().backward()
    gradients.fold()
    with pytest.raises(CommunicatorError, match="got another gradient after its bucket was sent"):
        gradients.exchange(early)
    gradients.forget()
    assert_mean_alone(gradients, model, [0, 1], weight=1.0)


def test_a_group_that_breaks_under_the_backward_breaks_only_the_exchange() -> None:
    model = chain()
    gradients = GradientSum(dict(model.named_parameters()), Reduction.EXACT, 1, 1, 2)
    gradients.reset()
    with gradients.backward():
        model(data(0)).sum().backward()
    gradients.fold()
    gradients.reset()
    dying = FailingCommunicator(2, 0, fails=2, at_launch=True)
    with gradients.backward(dying):
        model(data(0)).sum().backward()
    gradients.fold()
    with pytest.raises(CommunicatorError):
        gradients.exchange(dying)
    gradients.forget()
    assert_mean_alone(gradients, model, [0], weight=1.0)


def test_another_group_gets_everything_anew() -> None:
    """The world changed between the last backward and the reduction: nothing of the early exchange is used."""
    model = chain()
    gradients = GradientSum(dict(model.named_parameters()), Reduction.EXACT, 2, 1, 2)
    gradients.reset()
    early = FailingCommunicator(2, 0, fails=10**6)
    with gradients.backward():
        model(data(0)).sum().backward()
    gradients.fold()
    with gradients.backward(early):
        model(data(1)).sum().backward()
    gradients.fold()
    assert early.outputs
    assert_mean_alone(gradients, model, [0, 1], weight=2.0, late=early.outputs)

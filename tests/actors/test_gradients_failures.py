"""Reductions that die, and gradients that nobody should have made."""

import pytest
import torch
from everstep.actors.rank.gradients import GradientSum
from everstep.conf.elastic import Reduction
from everstep.conf.errors import CommunicatorError, LoopError
from torch import Tensor, nn

from .exchange import FailingCommunicator, ThreadCommunicator, together
from .small_model import (
    EVEN,
    UNEVEN,
    B,
    assert_same_bits,
    average,
    build,
    compute,
    finish,
    gradient_sum,
    grads_of,
    trained,
)


@pytest.fixture(scope="module")
def alone() -> dict[str, Tensor | None]:
    return trained((B,), Reduction.EXACT, UNEVEN)[0]


def accumulators(gradients: GradientSum) -> dict[str, Tensor]:
    return {slot.name: slot.sum.clone() for slot in gradients._slots if not slot.fresh}


@pytest.mark.parametrize("at_launch", [False, True])
@pytest.mark.parametrize("fails", range(8))
def test_a_reduction_that_dies_leaves_the_accumulators_intact(
    fails: int, at_launch: bool, alone: dict[str, Tensor | None]
) -> None:
    """It dies in each of its collectives in turn; then the survivors reduce again, and late writers hurt nobody."""
    shares = [[0, 1, 2], [3, 4, 5], [6, 7]]

    def work(communicator: ThreadCommunicator) -> dict[str, Tensor | None]:
        model = build()
        gradients = gradient_sum(model, bucket_bytes=300)
        assert gradients.buckets == 4, "each is exchanged and gathered"
        for step in range(2):
            gradients.reset()
            contributions = compute(model, gradients, shares[communicator.rank], UNEVEN)
            before = accumulators(gradients)
            dying = FailingCommunicator(communicator.size + 1, communicator.rank, fails, at_launch)
            if step == 1:
                with pytest.raises(CommunicatorError):
                    average(gradients, dying, 1.0)
                gradients.forget()
                after = accumulators(gradients)
                assert all(torch.equal(before[name], after[name]) for name in before)
            finish(gradients, contributions, communicator)
            for output in dying.outputs:
                output.fill_(torch.nan)
        return grads_of(model)

    for held in together(3, work):
        assert_same_bits(held, alone)


def test_work_goes_on_after_a_reduction_that_died(alone: dict[str, Tensor | None]) -> None:
    """A peer's microbatches are folded on top of what a dead collective has read."""
    model = build()
    gradients = gradient_sum(model)
    for step in range(2):
        gradients.reset()
        contributions = compute(model, gradients, [0, 1, 2, 3], UNEVEN)
        if step == 1:
            with pytest.raises(CommunicatorError):
                average(gradients, FailingCommunicator(2, 0, fails=1), 1.0)
            gradients.forget()
        contributions |= compute(model, gradients, [4, 5, 6, 7], UNEVEN)
        together(1, lambda communicator, held=contributions: finish(gradients, held, communicator))  # type: ignore[misc]
    assert_same_bits(grads_of(model), alone)


def test_forgotten_buffers_are_never_used_again() -> None:
    model = build()
    gradients = gradient_sum(model)
    gradients.reset()
    compute(model, gradients, [0], EVEN)
    first = [(bucket.received, bucket.mean) for bucket in gradients._buckets]
    again = [(bucket.received, bucket.mean) for bucket in gradients._buckets]
    used = {tensor.data_ptr() for pair in first for tensor in pair}
    assert used == {tensor.data_ptr() for pair in again for tensor in pair}, "without a failure they are used again"
    gradients.forget()
    assert not used & {tensor.data_ptr() for bucket in gradients._buckets for tensor in (bucket.received, bucket.mean)}


# --- misuse


def test_a_gradient_that_no_microbatch_made_is_refused() -> None:
    model = build()
    gradients = gradient_sum(model)
    gradients.reset()
    gradients.refuse_gradients()
    model(0).backward()
    with pytest.raises(LoopError, match=r"has a gradient that step\.backward\(loss\) did not make"):
        gradients.refuse_gradients()
    gradients.reset()
    gradients.refuse_gradients()


def test_sparse_gradients_are_refused() -> None:
    table = nn.Embedding(10, 3, sparse=True)
    gradients = GradientSum(dict(table.named_parameters()), Reduction.EXACT, 1, 100, 1)
    gradients.reset()
    table(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(LoopError, match="weight has a sparse gradient: everstep sums dense ones, use sparse=False"):
        gradients.fold()


def test_a_model_without_parameters_is_refused() -> None:
    with pytest.raises(LoopError, match="no parameter that requires a gradient"):
        GradientSum({}, Reduction.EXACT, 1, 100, 1)


def test_the_memory_that_it_takes_is_said() -> None:
    parameters = {"p": nn.Parameter(torch.ones(100_000))}
    exact = GradientSum(parameters, Reduction.EXACT, 1, 10**7, 4)
    float_ = GradientSum(parameters, Reduction.FLOAT, 1, 10**7, 4)
    assert exact.extra_bytes_per_parameter == pytest.approx(20, rel=1e-3)
    assert float_.extra_bytes_per_parameter == pytest.approx(8, rel=1e-3)

"""The gradient sum: whoever computes what, the same bits."""

import math
import random

import pytest
import torch
from everstep.actors.rank import grid
from everstep.actors.rank.gradients import GradientSum
from everstep.conf.elastic import Reduction
from torch import Tensor, nn

from .exchange import ThreadCommunicator, together
from .small_model import (
    EVEN,
    UNEVEN,
    B,
    Model,
    assert_same_bits,
    average,
    build,
    compute,
    finish,
    gradient_sum,
    grads_of,
    trained,
)

SPLITS = [(8,), (4, 4), (3, 3, 2), (8, 0), (1, 1, 1, 5), (2, 1, 2, 0, 3), (0, 0, 8)]


@pytest.fixture(scope="module")
def alone() -> dict[str, Tensor | None]:
    return trained((B,), Reduction.EXACT, UNEVEN)[0]


@pytest.mark.parametrize("split", SPLITS)
def test_exact_sums_have_the_same_bits_for_every_split(split: tuple[int, ...], alone: dict[str, Tensor | None]) -> None:
    for held in trained(split, Reduction.EXACT, UNEVEN):
        assert_same_bits(held, alone)


@pytest.mark.parametrize("bucket_bytes", [8, 100, 10**6])
def test_buckets_do_not_change_the_bits(bucket_bytes: int, alone: dict[str, Tensor | None]) -> None:
    for held in trained((3, 3, 2), Reduction.EXACT, UNEVEN, bucket_bytes=bucket_bytes):
        assert_same_bits(held, alone)


def test_the_order_of_microbatches_does_not_change_the_bits() -> None:
    def grads(order: list[int]) -> dict[str, Tensor | None]:
        model = build()
        gradients = gradient_sum(model)
        gradients.reset()
        contributions = compute(model, gradients, order, UNEVEN)
        together(1, lambda communicator: finish(gradients, contributions, communicator))
        return grads_of(model)

    expected = grads(list(range(B)))
    for seed in range(4):
        order = list(range(B))
        random.Random(seed).shuffle(order)
        assert_same_bits(grads(order), expected)


def test_the_exact_sum_is_the_sum_of_whole_numbers(alone: dict[str, Tensor | None]) -> None:
    """Written again with Python's integers, which have no order of summation."""
    model = build()
    exponents = {name: grid.first_exponent(B) for name, _ in model.named_parameters()}
    for _ in range(2):
        sums = {name: [0] * parameter.numel() for name, parameter in model.named_parameters()}
        maxima = dict.fromkeys(sums, 0.0)
        for index in range(B):
            model.zero_grad()
            model(index).backward(torch.tensor(UNEVEN[index]))
            for name, parameter in model.named_parameters():
                if parameter.grad is None:
                    continue
                values = parameter.grad.flatten().tolist()
                maxima[name] = max(maxima[name], *map(abs, values))
                for place, value in enumerate(values):
                    sums[name][place] += round(math.ldexp(value, -exponents[name]))
        used = dict(exponents)
        exponents = {
            name: exponents[name] if maximum == 0 else grid.exponent(maximum, B) for name, maximum in maxima.items()
        }
    weight = math.fsum(UNEVEN)
    for name, parameter in model.named_parameters():
        expected = alone[name]
        if expected is None:
            assert not any(sums[name])
            continue
        total = torch.tensor([float(whole) for whole in sums[name]], dtype=torch.float64)
        mean = (total * 2.0 ** used[name] / weight).to(torch.float32).view(parameter.shape)
        assert torch.equal(mean, expected), name


@pytest.mark.parametrize("reduction", list(Reduction))
@pytest.mark.parametrize("weights", [EVEN, UNEVEN])
def test_the_gradient_is_the_weighted_mean(reduction: Reduction, weights: list[float]) -> None:
    model = build().to(torch.float64)
    losses = sum(weights[index] * _in_float64(model, index) for index in range(B))
    (losses / sum(weights)).backward()
    for held in trained((3, 3, 2), reduction, weights):
        for name, parameter in model.named_parameters():
            if parameter.grad is None:
                assert held[name] is None
            else:
                torch.testing.assert_close(held[name], parameter.grad.to(torch.float32), rtol=2e-5, atol=1e-7)


def _in_float64(model: Model, index: int) -> Tensor:
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        generator = torch.Generator().manual_seed(index)
        data = torch.randn(6, 7, generator=generator, dtype=torch.float32).to(torch.float64)
        hidden = torch.tanh(model.first(data))
        hidden = torch.tanh(hidden @ model.tied) @ model.tied.t()
        loss = (hidden @ model.turned.t() * model.scale).square().mean()
        return loss + model.rare.square().sum() if index == 5 else loss
    finally:
        torch.set_default_dtype(default)


def test_float_sums_are_close_to_the_exact_ones(alone: dict[str, Tensor | None]) -> None:
    for split in ((8,), (3, 3, 2)):
        for held in trained(split, Reduction.FLOAT, UNEVEN):
            for name, gradient in held.items():
                if gradient is None:
                    assert alone[name] is None
                else:
                    torch.testing.assert_close(gradient, alone[name], rtol=1e-5, atol=1e-7)


# --- what is touched


def test_what_no_microbatch_touched_has_no_gradient(alone: dict[str, Tensor | None]) -> None:
    assert alone["never"] is None
    assert alone["rare"] is not None, "one microbatch on one rank is enough"


def test_a_gradient_of_zeros_is_a_touch() -> None:
    parameter = nn.Parameter(torch.ones(3))
    gradients = GradientSum({"p": parameter}, Reduction.EXACT, 1, 100, 1)
    gradients.reset()
    (parameter * 0).sum().backward()
    assert float(gradients.fold()) == 0.0
    assert gradients.touched() == [True]


def test_tied_parameters_count_once() -> None:
    layer = nn.Linear(3, 3, bias=False)
    model = nn.Sequential(layer, nn.Tanh(), layer)
    gradients = GradientSum(dict(model.named_parameters()), Reduction.EXACT, 1, 100, 1)
    assert gradients.names == ("0.weight",)
    data = torch.randn(2, 3)
    model(data).sum().backward()
    expected = layer.weight.grad.clone()  # type: ignore[union-attr]
    gradients.reset()
    model(data).sum().backward()
    gradients.fold()
    together(1, lambda communicator: average(gradients, communicator, 1.0))
    gradients.publish(gradients.touched())
    torch.testing.assert_close(layer.weight.grad, expected)


def test_parameters_whose_gradients_are_one_tensor_do_not_scale_each_other() -> None:
    first, second = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))
    gradients = GradientSum({"a": first, "b": second}, Reduction.EXACT, 1, 1000, 1)
    gradients.reset()
    factor = torch.tensor([1.0, 2.0, 3.0, 4.0])
    ((first + second) * factor).sum().backward()
    gradients.fold()
    together(1, lambda communicator: average(gradients, communicator, 1.0))
    gradients.publish([True, True])
    assert torch.equal(first.grad, factor)  # type: ignore[arg-type]
    assert torch.equal(second.grad, factor)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("reduction", list(Reduction))
def test_parameters_of_other_precisions(dtype: torch.dtype, reduction: Reduction) -> None:
    """Summed in at least float32, and given back as what the parameter is."""

    def work(communicator: ThreadCommunicator) -> Tensor | None:
        parameter = nn.Parameter(torch.ones(5, dtype=dtype))
        gradients = GradientSum({"p": parameter}, reduction, B, 1000, 2)
        gradients.reset()
        for index in range(communicator.rank, B, communicator.size):
            (parameter * (1 + index * 2.0**-6)).sum().backward()
            gradients.fold()
        average(gradients, communicator, float(B))
        gradients.publish([True])
        return parameter.grad

    for gradient in together(2, work):
        assert gradient is not None
        assert gradient.dtype is dtype
        mean = sum(1 + index * 2.0**-6 for index in range(B)) / B
        assert torch.equal(gradient, torch.full((5,), mean, dtype=torch.float32).to(dtype))


def test_an_empty_parameter_is_no_trouble() -> None:
    empty, full = nn.Parameter(torch.zeros(0, 3)), nn.Parameter(torch.ones(2))
    gradients = GradientSum({"empty": empty, "full": full}, Reduction.EXACT, 1, 4, 1)
    gradients.reset()
    (empty.sum() + full.sum()).backward()
    assert float(gradients.fold()) == 1.0
    together(1, lambda communicator: average(gradients, communicator, 1.0))
    gradients.publish(gradients.touched())
    assert torch.equal(full.grad, torch.ones(2))  # type: ignore[arg-type]


def test_what_a_rank_touched_in_an_earlier_step_is_not_summed_again() -> None:
    """Microbatch 5 moves from rank 0 to rank 1, and with it the parameter that only it uses."""
    shares = [([5, 0, 1], [2, 3, 4, 6, 7]), ([0, 1], [2, 3, 4, 5, 6, 7])]

    def work(communicator: ThreadCommunicator) -> dict[str, Tensor | None]:
        model = build()
        gradients = gradient_sum(model)
        for share in shares:
            gradients.reset()
            finish(gradients, compute(model, gradients, share[communicator.rank], EVEN), communicator)
        return grads_of(model)

    expected = trained((B,), Reduction.EXACT, EVEN)[0]
    for held in together(2, work):
        assert_same_bits(held, expected)


# --- the grid at work


def test_what_lies_under_the_grid_is_rounded_before_any_sum() -> None:
    """1, 2^-60 and -1: in plain floating point the order decides whether the middle one survives."""
    values = [1.0, 2.0**-60, -1.0]

    def mean(order: list[int]) -> Tensor | None:
        parameter = nn.Parameter(torch.ones(1))
        gradients = GradientSum({"p": parameter}, Reduction.EXACT, 3, 100, 1)
        gradients.advance([1.0], committed=True)
        gradients.reset()
        for index in order:
            (parameter * values[index]).sum().backward()
            gradients.fold()
        together(1, lambda communicator: average(gradients, communicator, 3.0))
        gradients.publish([True])
        return parameter.grad

    for order in ([0, 1, 2], [0, 2, 1], [1, 2, 0]):
        assert torch.equal(mean(order), torch.zeros(1))  # type: ignore[arg-type]


def test_a_step_has_maxima_of_its_own() -> None:
    parameter = nn.Parameter(torch.ones(2))
    gradients = GradientSum({"p": parameter}, Reduction.EXACT, 2, 100, 1)
    for factor in (8.0, 2.0):
        gradients.reset()
        for sign in (1, -0.5):
            (parameter * factor * sign).sum().backward()
            assert float(gradients.fold()) == abs(factor * sign)
        assert gradients.maxima().tolist() == [factor]


def test_tiny_gradients_are_not_lost() -> None:
    """The grid follows them down, and the way back from it must not leave float32's range."""
    parameter = nn.Parameter(torch.ones(3))
    tiny = torch.tensor([2.0**-90, -(2.0**-95), 3 * 2.0**-100])
    gradients = GradientSum({"p": parameter}, Reduction.EXACT, 1, 1000, 1)
    for _ in range(2):
        gradients.reset()
        (parameter * tiny).sum().backward(torch.tensor(2.0**20))
        peak = gradients.fold()
        together(1, lambda communicator: average(gradients, communicator, 2.0**20))
        gradients.publish([True])
        gradients.advance([float(peak)], committed=True)
    assert torch.equal(parameter.grad, tiny)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_found_before_it_is_summed(bad: float) -> None:
    parameter = nn.Parameter(torch.ones(3))
    gradients = GradientSum({"p": parameter}, Reduction.EXACT, 2, 1000, 1)
    gradients.reset()
    (parameter * torch.tensor([1.0, bad, 2.0])).sum().backward()
    assert float(gradients.fold()) == math.inf
    assert gradients.maxima().tolist() == [math.inf]
    assert gradients.misfits(gradients.maxima().tolist()) == ["p"]


def test_a_step_that_does_not_fit_is_done_again_on_a_grid_that_fits() -> None:
    parameter, calm = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))
    gradients = GradientSum({"p": parameter, "calm": calm}, Reduction.EXACT, 1, 1000, 1)
    huge = torch.tensor([2.0**60, 1.0, -(2.0**59)])

    def attempt() -> list[float]:
        gradients.reset()
        ((parameter * huge).sum() + calm.sum()).backward()
        gradients.fold()
        return gradients.maxima().tolist()

    maxima = attempt()
    before = gradients.exponents
    assert gradients.misfits(maxima) == ["p"]
    gradients.advance(maxima, committed=False)
    assert gradients.exponents[0] > before[0]
    assert gradients.exponents[1] == before[1]
    assert attempt() == maxima, "the gradients are the same, only the grid is not"
    assert gradients.misfits(maxima) == []
    together(1, lambda communicator: average(gradients, communicator, 1.0))
    gradients.publish([True, True])
    assert torch.equal(parameter.grad[[0, 2]], huge[[0, 2]])  # type: ignore[index]


def test_float_sums_have_no_grid() -> None:
    parameter = nn.Parameter(torch.ones(3))
    gradients = GradientSum({"p": parameter}, Reduction.FLOAT, 1, 1000, 1)
    before = gradients.exponents
    gradients.advance([2.0**80], committed=True)
    assert gradients.exponents == before
    assert gradients.misfits([2.0**100]) == []

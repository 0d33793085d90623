"""Digests of weights: what they must tell apart, and what they must not."""

import pytest
import torch
from everstep.actors.rank.signature import tensor_sha256, weights_sha256
from torch import Tensor, nn

ONE = torch.arange(6, dtype=torch.float32).reshape(2, 3)


@pytest.mark.parametrize(
    "other",
    [
        ONE.reshape(3, 2),
        ONE.reshape(6),
        ONE.to(torch.float64),
        ONE.view(torch.int32),
        torch.nextafter(ONE, ONE + 1),
        ONE.t(),
    ],
)
def test_dtype_shape_and_every_bit_count(other: Tensor) -> None:
    assert tensor_sha256(other) != tensor_sha256(ONE)


def test_minus_zero_is_not_zero() -> None:
    assert tensor_sha256(torch.tensor([0.0])) != tensor_sha256(torch.tensor([-0.0]))


def test_how_a_tensor_lies_in_memory_does_not_count() -> None:
    assert tensor_sha256(ONE.t().contiguous().t()) == tensor_sha256(ONE)
    padded = torch.zeros(2, 5)
    padded[:, 1:4] = ONE
    assert tensor_sha256(padded[:, 1:4]) == tensor_sha256(ONE)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(1.5),
        torch.tensor([]),
        torch.zeros(0, 3),
        torch.tensor([True, False]),
        ONE.to(torch.bfloat16),
        ONE.to(torch.float16),
        torch.tensor([1, -1], dtype=torch.int8),
        torch.tensor([1 + 2j]),
        nn.Parameter(ONE.clone()),
    ],
)
def test_tensors_of_every_kind_have_one(tensor: Tensor) -> None:
    assert tensor_sha256(tensor) == tensor_sha256(tensor.detach().clone())
    assert len(tensor_sha256(tensor)) == 64


def test_the_order_of_names_does_not_count() -> None:
    state = {"b": ONE, "a": ONE + 1}
    assert weights_sha256(state) == weights_sha256(dict(reversed(state.items())))


def test_names_count() -> None:
    assert weights_sha256({"a": ONE, "b": ONE + 1}) != weights_sha256({"b": ONE, "a": ONE + 1})
    assert weights_sha256({"a": ONE}) != weights_sha256({"b": ONE})
    assert weights_sha256({"a": ONE}) != weights_sha256({"a": ONE, "b": ONE})


@pytest.mark.parametrize(
    "wrapped",
    [
        "_orig_mod.layer.weight",
        "module.layer.weight",
        "module._orig_mod.layer.weight",
        "layer._orig_mod.weight",
        "_fsdp_wrapped_module.layer._checkpoint_wrapped_module.weight",
    ],
)
def test_wrappers_do_not_count(wrapped: str) -> None:
    assert weights_sha256({wrapped: ONE}) == weights_sha256({"layer.weight": ONE})


def test_a_name_that_only_looks_like_a_wrapper_counts() -> None:
    assert weights_sha256({"modules.weight": ONE}) != weights_sha256({"weight": ONE})


def test_a_wrapped_model_has_the_weights_of_the_plain_one() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    assert weights_sha256(nn.DataParallel(model).state_dict()) == weights_sha256(model.state_dict())

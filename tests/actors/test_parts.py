"""A state in parts: together they are the state, to the bit; and others can read them."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from everstep.actors.rank.parts import joined, packed, portion
from everstep.conf.errors import SavedStateError
from torch import Tensor, nn

FACTS = {"step": "7"}


def state() -> dict[str, Any]:
    """Every kind of tensor, tied ones, containers in containers, and what is no tensor."""
    generator = torch.Generator().manual_seed(5)
    layer = nn.Linear(7, 3)
    return {
        "model": {"weight": layer.weight, "tied": layer.weight, "bias": layer.bias.detach()},
        "optimizer": {
            "state": {0: {"step": torch.tensor(3.0), "exp_avg": torch.randn(7, 3, generator=generator).t()}},
            "groups": [{"lr": 0.1, "params": [0, 1], "betas": (0.9, 0.99)}],
        },
        "kinds": [
            torch.randn(5, generator=generator).to(torch.bfloat16),
            torch.tensor([True, False, True]),
            torch.randint(0, 255, (11,), dtype=torch.uint8, generator=generator),
            torch.randn(2, 2, dtype=torch.complex128, generator=generator),
            torch.empty(0, 4),
            torch.tensor(2**40),
        ],
        "numbers": np.arange(4.0),
        "text": "as it was",
    }


def files(value: Any, ranks: int) -> list[Tensor]:
    """What each of so many ranks writes."""
    made = []
    for place in range(ranks):
        mine = portion(packed(value), place, ranks, FACTS)
        memory = torch.full((mine.layout.bytes,), 0xEE, dtype=torch.uint8)
        mine.copy_to(memory)
        made.append(memory)
    return made


def same(one: Any, other: Any) -> bool:
    """To the bit, with dtypes and shapes."""
    if isinstance(one, Tensor):
        return one.dtype is other.dtype and one.shape == other.shape and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return bool((one == other).all())
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and all(same(*pair) for pair in zip(one, other, strict=True))
    return bool(one == other)


@pytest.mark.parametrize("ranks", [1, 2, 5, 40])
def test_all_parts_are_the_state(ranks: int) -> None:
    held = state()
    back = joined(files(held, ranks))
    assert same(held, back)
    assert back["model"]["weight"] is back["model"]["tied"]


def test_each_tensor_is_saved_once_however_many_ranks_there_are() -> None:
    held = state()
    one, several = (sum(len(memory) for memory in files(held, ranks)) for ranks in (1, 4))
    names = [name for place in range(4) for name in portion(packed(held), place, 4, FACTS).tensors]
    assert sorted(names) == sorted(portion(packed(held), 0, 1, FACTS).tensors)
    assert several - one < 4 * 1024  # headers


def test_tensors_have_the_names_by_which_they_are_known() -> None:
    assert {"model.weight", "model.bias", "optimizer.state.0.exp_avg", "kinds.0"} <= set(
        portion(packed(state()), 0, 1, FACTS).tensors
    )


def test_two_tensors_of_one_name_are_two() -> None:
    held = {"a": {"b.c": torch.zeros(2)}, "a.b": {"c": torch.ones(2)}, "inside": Opaque(torch.full((2,), 3.0))}
    back = joined(files(held, 2))
    assert (back["a"]["b.c"].sum(), back["a.b"]["c"].sum(), back["inside"].tensor.sum()) == (0, 2, 6)


class Opaque:
    """An object with a tensor in it."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def test_a_part_that_is_missing_is_named() -> None:
    parts = files(state(), 3)
    with pytest.raises(SavedStateError, match="no part holds"):
        joined(parts[:2])
    with pytest.raises(SavedStateError, match="structure"):
        joined(parts[1:])


def test_what_is_no_such_file_is_refused() -> None:
    with pytest.raises(SavedStateError, match="safetensors"):
        joined([torch.zeros(100, dtype=torch.uint8) + 7])


def test_the_safetensors_library_reads_every_part(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.torch")
    held = state()
    found: dict[str, Tensor] = {}
    for place, memory in enumerate(files(held, 3)):
        path = tmp_path / f"{place}.safetensors"
        path.write_bytes(bytes(memory.numpy()))
        found |= library.load_file(path)
    assert torch.equal(found["model.weight"], held["model"]["weight"])
    assert torch.equal(found["optimizer.state.0.exp_avg"], held["optimizer"]["state"][0]["exp_avg"])
    assert found["kinds.0"].dtype is torch.bfloat16
    assert found["kinds.3"].dtype is torch.uint8  # the format knows no complex numbers of this size


def test_a_change_is_noticed() -> None:
    held = state()
    mine = packed(held)
    assert mine.unchanged
    held["kinds"][0].add_(1)
    assert not mine.unchanged


def test_an_object_that_pickles_itself_comes_back() -> None:
    held = {"stream": io.BytesIO(b"abc")}
    assert joined(files(held, 2))["stream"].getvalue() == b"abc"

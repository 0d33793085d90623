"""Whether a data set is the one that a run was begun with."""

import random

import numpy as np
import torch
from everstep.actors.rank.data import Loader, Microbatches
from everstep.actors.rank.signature import value_sha256


class Samples:
    """Numbers with an augmentation, as a list that can be changed in place."""

    def __init__(self, shift: float = 0.0, length: int = 40) -> None:
        self._shift = shift
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, item: int) -> dict[str, object]:
        return {"x": np.arange(3) + item + self._shift, "noise": torch.randn(2), "draw": random.random()}


def identity(dataset: Samples, seed: int = 3, size: int = 4, microbatches: int = 8) -> str:
    return Loader(Microbatches(dataset, size), microbatches, seed).sample_sha256()


def test_the_same_data_is_the_same_whatever_was_drawn_before() -> None:
    first = identity(Samples())
    torch.randn(7), random.random()
    assert identity(Samples()) == first


def test_other_data_and_another_order_are_others() -> None:
    assert len({identity(Samples()), identity(Samples(0.5)), identity(Samples(), seed=4)}) == 3


def test_looking_draws_nothing_from_the_streams_of_the_user() -> None:
    torch.manual_seed(1)
    expected = torch.randn(3)
    torch.manual_seed(1)
    identity(Samples())
    assert torch.equal(torch.randn(3), expected)


def test_a_sample_that_cannot_be_read_is_met_later() -> None:
    class Broken(Samples):
        def __getitem__(self, item: int) -> dict[str, object]:
            raise OSError("gone")

    assert identity(Broken()) == "OSError in a sample"


def test_arrays_count_by_their_values() -> None:
    assert value_sha256({"a": np.zeros(3)}) != value_sha256({"a": np.ones(3)})
    assert value_sha256(np.zeros(3)) != value_sha256(np.zeros(3, dtype=np.float32))

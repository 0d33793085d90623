"""The copy of a snapshot beside the next step, on the CPU's path."""

import pytest
import torch
from everstep.actors.rank.parts import Portion
from everstep.benchmarks.device_copy import copy_rows
from torch import nn

CPU = torch.device("cpu")


def rows() -> dict[str, float]:
    model = nn.Linear(30, 20)
    model(torch.ones(4, 30)).sum().backward()
    return {row.name: row.value for row in copy_rows(model, CPU, rounds=3, seed=0)}


def test_every_copy_is_right() -> None:
    found = rows()
    assert found["copies_right"] == 1
    # Parameters and two moments.
    assert found["copy_size"] * 2**20 > 3 * 620 * 4


def test_a_copy_that_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    copy = Portion.copy_to

    def wrongly(self: Portion, memory: torch.Tensor) -> None:
        copy(self, memory)
        name = next(name for name in self.tensors if "weight" in name)
        memory[self.layout.offsets[name]] ^= 1

    monkeypatch.setattr(Portion, "copy_to", wrongly)
    assert rows()["copies_right"] == 0

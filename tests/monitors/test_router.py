"""Formulas against what they stand for."""

import pytest
import torch
from everstep.monitors.discovery import Router
from everstep.monitors.router import conditioning, decisions, read_routers, similarity
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F


@given(st.integers(2, 8), st.integers(1, 8), st.integers(0, 99))
def test_similarity_is_the_mean_cosine_of_pairs(count: int, width: int, seed: int) -> None:
    rows = torch.randn(count, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    pairs = [F.cosine_similarity(rows[a], rows[b], dim=0) for a in range(count) for b in range(a)]
    assert similarity(rows) == pytest.approx(float(sum(pairs)) / len(pairs), abs=1e-9)


def test_conditioning() -> None:
    assert conditioning(torch.tensor([[3.0, 1.0], [3.0, -1.0]])) == pytest.approx(1 / 3)
    assert conditioning(torch.tensor([[1.0, 0.0], [-1.0, 0.0]])) == float("inf")


def test_decisions() -> None:
    even = decisions(torch.zeros(2, 3, 4), "a", 5, 2).numbers
    assert even["entropy"] == pytest.approx(1)
    # Of equals the same two are always chosen.
    assert even["load"] == 2
    one = decisions(torch.tensor([[50.0, 0, 0, 0]] * 6), "a", 5, 1).numbers
    assert one["entropy"] == pytest.approx(0, abs=1e-9)
    assert one["load"] == 4
    turns = decisions(50 * torch.eye(4), "a", 5, 1).numbers
    assert turns["load"] == 1
    with pytest.raises(ValueError, match="top 5"):
        decisions(torch.zeros(3, 4), "a", 5, 5)


def test_routers_of_a_model() -> None:
    model = nn.Linear(2, 3)
    (reading,) = read_routers(model, [Router("a", "weight")], 7)
    assert (reading.layer, reading.step) == ("a", 7)
    assert reading.numbers["similarity"] == similarity(model.weight.detach())
    with pytest.raises(ValueError, match="has no parameter other"):
        read_routers(model, [Router("a", "other")], 7)
    with pytest.raises(ValueError, match="two rows or more"):
        similarity(torch.ones(1, 4))

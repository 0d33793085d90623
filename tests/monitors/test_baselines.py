"""What is watched today."""

import math

import pytest
import torch
from everstep.monitors.baselines import copied, gradient_norm, max_attention_logit, update_ratio, weight_norm
from torch import nn


@pytest.mark.parametrize("causal", [True, False])
def test_the_largest_score_is_found_in_any_block(causal: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(2, 3, 300, 4, generator=generator) for _ in range(2))
    # Few queries may see the keys with the largest scores.
    key[..., -40:, :] *= 10
    scores = query @ key.mT / 2
    if causal:
        scores = scores.masked_fill(torch.ones(300, 300, dtype=torch.bool).triu(1), -math.inf)
    assert max_attention_logit(query, key, causal=causal) == pytest.approx(float(scores.max()), rel=1e-5)


def test_a_score_that_is_no_number_is_not_lost() -> None:
    query, key = torch.ones(1, 300, 4), torch.ones(1, 300, 4)
    query[0, 3] = math.nan
    assert math.isnan(max_attention_logit(query, key))


def test_norms_and_ratio() -> None:
    model = nn.Linear(2, 1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[3.0, 0.0]]))
        model.bias.fill_(4.0)
    assert weight_norm(model.parameters()) == 5
    assert gradient_norm(model.parameters()) == 0
    before = copied(model)
    with torch.no_grad():
        model.weight += torch.tensor([[0.0, 1.0]])
    assert update_ratio(before, model) == pytest.approx(0.2)
    model(torch.tensor([[3.0, 4.0]])).sum().backward()
    assert gradient_norm(model.parameters()) == pytest.approx(math.sqrt(26))
    with pytest.raises(ValueError, match="bias is not on both sides"):
        update_ratio({"weight": model.weight}, model)

"""The mixture of experts: each token goes where its router sends it, and its monitors find it."""

import pytest
import torch
from everstep.examples.gpt import GPTConfig
from everstep.examples.moe import Experts, balanced_loss, moe_gpt
from everstep.monitors.discovery import find_projections, find_routers
from everstep.monitors.router import read_routers

SMALL = GPTConfig(block=32, layers=2, width=32, heads=2)


@pytest.mark.parametrize("top", [1, 2, 4])
def test_each_token_goes_through_the_experts_that_its_router_prefers(top: int) -> None:
    torch.manual_seed(0)
    layer = Experts(SMALL, 4, top)
    x = torch.randn(2, 5, SMALL.width)
    with torch.no_grad():
        found = layer(x)
        for token, mixed in zip(x.flatten(0, 1), found.flatten(0, 1), strict=True):
            liking = layer.router(token).softmax(-1)
            chosen = liking.argsort(descending=True)[:top].tolist()
            share = sum(liking[index] for index in chosen) if top > 1 else 1
            expected = sum(layer.experts[index](token) * liking[index] / share for index in chosen)
            torch.testing.assert_close(mixed, expected, rtol=1e-4, atol=1e-6)


def test_imbalance_is_1_for_equal_and_the_number_of_experts_for_one() -> None:
    layer = Experts(SMALL, 4, 1)
    with torch.no_grad():
        layer.router.weight.zero_()
        layer.router.weight[2, 0] = 100
        layer(torch.ones(1, 6, SMALL.width))
        assert layer.imbalance.item() == pytest.approx(4)
        layer.router.weight.copy_(100 * torch.eye(4, SMALL.width))
        layer(torch.eye(4, SMALL.width)[None])
        assert layer.imbalance.item() == pytest.approx(1)
    with pytest.raises(ValueError, match=r"top=5 of 4 experts; it must be in 1\.\.4"):
        Experts(SMALL, 4, 5)


@pytest.mark.parametrize("top", [1, 2])
def test_training_lowers_the_loss_and_reaches_every_expert_and_router(top: int) -> None:
    torch.manual_seed(0)
    model = moe_gpt(SMALL, 4, top)
    windows = torch.randint(256, (2, 33))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        minimised, loss = balanced_loss(model, windows)
        minimised.backward()
        losses.append(loss.item())
        optimizer.step()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert all(layer.router.weight.grad.norm() > 0 for layer in model.modules() if isinstance(layer, Experts))
    assert losses[-1] < 0.7 * losses[0]


def test_monitors_find_its_heads_and_routers() -> None:
    model = moe_gpt(SMALL)
    assert [found.layer for found in find_projections(model)] == ["blocks.0.attention", "blocks.1.attention"]
    routers = find_routers(model)
    assert [found.parameter for found in routers] == [f"blocks.{index}.feed_forward.router.weight" for index in (0, 1)]
    assert [reading.layer for reading in read_routers(model, routers, 0)] == [found.layer for found in routers]

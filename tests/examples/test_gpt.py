"""The example model: its size, that it cannot look ahead, and that its gradients repeat bit for bit."""

import math

import pytest
import torch
from everstep.examples.gpt import GPT, GPTConfig, next_token_loss
from torch import Tensor

SMALL = GPTConfig(block=32, layers=2, width=32, heads=2)


@pytest.fixture(autouse=True)
def _deterministic():
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before)


def random_tokens(length: int, seed: int = 0) -> Tensor:
    return torch.randint(256, (2, length), generator=torch.Generator().manual_seed(seed))


def test_logits_have_one_row_for_each_token() -> None:
    assert GPT(SMALL)(random_tokens(20)).shape == (2, 20, 256)


def test_default_model_has_3_3_million_parameters_and_a_tied_head() -> None:
    model = GPT(GPTConfig())
    assert sum(parameter.numel() for parameter in model.parameters()) == 3_281_408
    assert model.head.weight is model.token_embedding.weight


def test_a_token_changes_its_own_and_later_logits_only() -> None:
    model = GPT(SMALL).eval()
    tokens = random_tokens(32)
    changed = tokens.clone()
    changed[:, 12] = (changed[:, 12] + 1) % 256
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :12], after[:, :12])
    assert not (before[:, 12:] == after[:, 12:]).all(dim=(0, 2)).any()


def test_untrained_loss_is_that_of_a_uniform_guess_and_training_lowers_it() -> None:
    torch.manual_seed(0)
    model = GPT(SMALL)
    windows = random_tokens(33)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    first = next_token_loss(model, windows)
    assert first.item() == pytest.approx(math.log(256), rel=0.02)
    for _ in range(30):
        optimizer.zero_grad()
        next_token_loss(model, windows).backward()
        optimizer.step()
    assert next_token_loss(model, windows) < 0.7 * first


def gradients(config: GPTConfig, dropout_seed: int) -> list[Tensor]:
    torch.manual_seed(0)
    model = GPT(config)
    torch.manual_seed(dropout_seed)
    next_token_loss(model, random_tokens(config.block + 1)).backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def test_gradients_repeat_bit_for_bit_and_follow_the_seed_of_dropout() -> None:
    config = GPTConfig(layers=2)
    first, again, other = gradients(config, 1), gradients(config, 1), gradients(config, 2)
    assert len(first) == len(list(GPT(config).parameters()))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_width_that_heads_do_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match="width=10 must be a multiple of heads=4"):
        GPTConfig(width=10, heads=4)

"""The faults of the study do what they say, and nothing else; a run repeats to the bit."""

import math
import random

import torch
from everstep.benchmarks.instability.faults import BiasedAttention, Fault, rounded
from everstep.benchmarks.instability.training import Course, flip, train
from everstep.examples.gpt import GPTConfig
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F


@given(st.floats(-(2.0**99), 2.0**99, width=32, allow_subnormal=False))
def test_rounding_is_that_of_bfloat16(value: float) -> None:
    held = torch.tensor([value])
    assert torch.equal(rounded(held, torch.round), held.bfloat16().float())
    down = rounded(held, torch.floor)
    assert torch.equal(down, down.bfloat16().float())
    assert 0 <= float(held - down) <= abs(value) * 2**-7


def drawn(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(2, 2, 40, 8, generator=generator, requires_grad=True) for _ in range(3)]


def test_without_errors_it_is_attention() -> None:
    query, key, value = drawn(0)
    given_ = torch.randn(2, 2, 40, 8, generator=torch.Generator().manual_seed(1))
    outputs, gradients = [], []
    for made in (
        BiasedAttention.apply(query, key, value, 0.0),
        F.scaled_dot_product_attention(query, key, value, is_causal=True),
    ):
        outputs.append(made)
        gradients.append(torch.autograd.grad(made, (query, key, value), given_))
    torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-4, atol=1e-5)
    for first, second in zip(*gradients, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-5)


def errors(tied: bool) -> torch.Tensor:
    """Of the output, where the two largest scores of late rows are equal, or are not."""
    query, key, value = (one.detach() for one in drawn(0))
    query, key = query * 0, key * 0
    query[..., 0], key[..., :2, 0] = 8.0, 8.0
    if not tied:
        key[..., 1, 0] = 6.0
    exact = BiasedAttention.apply(query, key, value, 0.0)
    return (BiasedAttention.apply(query, key, value, 1.0) - exact)[..., 2:, :]


def test_errors_have_one_sign_where_scores_tie() -> None:
    one, two = errors(True), errors(False)
    assert one.max() <= 1e-6
    assert one.mean() < -1e-3
    assert abs(two.mean()) < abs(one.mean()) / 4
    assert one.abs().max() < 2 * 2**-7 * math.sqrt(40)


def test_an_error_is_magnified_and_leans_on_scores() -> None:
    query, key, value = drawn(2)
    given_ = torch.ones(2, 2, 40, 8)
    slopes = []
    for error in (0.0, 100.0):
        scores = torch.autograd.grad(BiasedAttention.apply(query, key, value, error), query, given_)[0]
        slopes.append(scores)
    assert not torch.allclose(*slopes)
    first, second = (BiasedAttention.apply(query, key, value, error) for error in (1.0, 10.0))
    exact = BiasedAttention.apply(query, key, value, 0.0)
    torch.testing.assert_close(10 * (first - exact), second - exact, rtol=1e-2, atol=1e-4)


TEXT = torch.arange(4000).remainder(97).to(torch.uint8)
SMALL = Course(10, onset=5, ramp=2, warm_up=2, every=5, lag=2, model=GPTConfig(block=16, layers=1, width=16, heads=2))


def test_a_run_repeats_and_is_healthy_until_the_onset() -> None:
    healthy, again = (train(SMALL, Fault(), 3, TEXT) for _ in range(2))
    assert healthy == again
    monitors = {(one.monitor, one.step) for one in healthy.readings}
    assert monitors == {("attention", 5), *((name, step) for name in ("router", "baseline") for step in (0, 5))}
    for fault in (Fault(error=1e4), Fault(rate=16.0), Fault(rate=2.0, jumps=True), Fault(balance=-9.0)):
        sick = train(SMALL, fault, 3, TEXT)
        assert sick.losses[:5] == healthy.losses[:5]
        assert sick.losses[-1] != healthy.losses[-1]


def test_one_bit_flips_and_what_is_small_stays_small() -> None:
    for seed in range(20):
        held = [torch.rand(3), torch.rand(2, 2)]
        before = torch.cat([one.flatten().clone() for one in held])
        flip(held, random.Random(seed))
        after = torch.cat([one.flatten() for one in held])
        changed = before.view(torch.int32) ^ after.view(torch.int32)
        assert changed.count_nonzero() == 1
        assert int(changed.abs().max()).bit_count() == 1
        assert after.abs().max() <= 2


def test_what_has_no_hope_ends() -> None:
    assert len(train(SMALL, Fault(rate=1e6, jumps=True), 3, TEXT).losses) < SMALL.steps

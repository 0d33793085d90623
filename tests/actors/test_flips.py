"""Planned corruption: one bit of one number, where and when it was planned, announced once."""

import copy

import pytest
import torch
from everstep.actors.faults import Chaos
from everstep.actors.rank.flips import Flips, flip
from everstep.actors.rank.layers import layers
from everstep.conf.chaos import Fault, FaultKind, FaultPoint
from everstep.policies.world import Seat
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from .rank_bench import Bench
from .test_audits import told_by, world_of

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
WHOLE = {
    torch.float32: torch.int32,
    torch.float64: torch.int64,
    torch.bfloat16: torch.int16,
    torch.float16: torch.int16,
}


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(DTYPES), st.integers(0, 63), st.integers(0, 99), st.booleans())
def test_exactly_one_bit_of_one_number(dtype: torch.dtype, bit: int, place: int, turned: bool) -> None:
    held = torch.randn(3, 5).to(dtype)
    held = held.t() if turned else held
    before = held.clone()
    flip(held, bit, place)
    different = (before.contiguous().view(WHOLE[dtype]) ^ held.contiguous().view(WHOLE[dtype])).flatten()
    width = 8 * held.element_size()
    (index,) = different.nonzero().flatten().tolist()
    assert index == place % held.numel()
    assert int(different[index]) % 2**width == 1 << min(bit, width - 1)
    flip(held, bit, place)
    assert torch.equal(before, held)


def chaos_of(*faults: Fault) -> tuple[Chaos, list[str]]:
    said: list[str] = []
    return Chaos(faults, Seat(1), lambda fault, evidence: said.append(f"{fault}: {evidence}")), said


def struck(chaos: Chaos, step: int, ordinal: int = 0, aside: bool = False) -> int:
    chaos.step, chaos.ordinal, chaos.aside = step, ordinal, aside
    return len(chaos.flips(FaultPoint.IN_FORWARD, FaultKind.FLIP, "the output of x"))


def test_once() -> None:
    chaos, said = chaos_of(Fault(2, 1, point="in_forward", kind="flip", bit=4, microbatch=1))
    assert [struck(chaos, 1), struck(chaos, 2), struck(chaos, 2, 1, aside=True), struck(chaos, 2, 1)] == [0, 0, 0, 1]
    assert [struck(chaos, 2, 1), struck(chaos, 3, 1)] == [0, 0]
    assert len(said) == 1
    assert said[0].startswith(
        "flip of bit 4 of rank 1.0 at step 2 in_forward of its microbatch 1: the output of x at step 2"
    )
    assert not chaos


def test_again_and_again() -> None:
    chaos, said = chaos_of(Fault(2, 1, point="in_forward", kind="flip", bit=4, recurring=True))
    assert [struck(chaos, 1), struck(chaos, 2), struck(chaos, 2, 1), struck(chaos, 9, aside=True)] == [0, 1, 1, 1]
    assert len(said) == 1
    assert "from step 2 on" in said[0]


def test_a_flip_is_nothing_that_ends_a_process() -> None:
    chaos, said = chaos_of(Fault(2, 1, point="in_forward", kind="flip", bit=4))
    chaos.step = 2
    chaos.at(FaultPoint.IN_FORWARD)
    assert said == []


def test_layers_are_the_innermost_with_parameters() -> None:
    inner = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Sequential(nn.LayerNorm(2)))
    assert list(layers({"": inner})) == ["0", "2.0"]
    assert list(layers({"one": inner, "two": nn.Linear(1, 1)})) == ["one.0", "one.2.0", "two"]
    inner.register_parameter("own", nn.Parameter(torch.ones(1)))
    assert list(layers({"": inner})) == ["0", "2.0"]
    assert list(layers({"": nn.Sequential(nn.MultiheadAttention(4, 1), nn.Linear(1, 1))})) == ["0", "1"]


POINTS = {
    "in_forward": Fault(1, 1, point="in_forward", kind="flip", bit=18, recurring=True),
    "in_backward": Fault(1, 1, point="in_backward", kind="flip", bit=3, recurring=True),
}


@pytest.mark.parametrize("point", POINTS)
def test_an_audit_sees_it(point: str) -> None:
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))

    def act(bench: Bench, rank: int) -> None:
        bench.chaos = Chaos((POINTS[point],), Seat(rank), lambda fault, evidence: None)
        bench.engine._chaos = bench.chaos
        Flips(bench.chaos, {"": bench.model}).arm({"": bench.model}, [])
        for step in bench.run:
            for batch in step:
                step.backward(bench.loss(batch))

    for held in told_by(world_of(3, model, act, steps=5)).values():
        others = {value for rank, value in held.items() if rank != 1}
        assert len(others) == 1
        assert held[1] not in others


@pytest.mark.parametrize("kind", ["flip", "flip_moment"])
def test_what_an_optimizer_leaves(kind: str) -> None:
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 1))
    twin = copy.deepcopy(model)
    chaos, said = chaos_of(Fault(0, 1, point="in_optimizer", kind=kind, bit=20))
    optimizers = [torch.optim.AdamW(held.parameters()) for held in (model, twin)]
    Flips(chaos, {"": model}).arm({"": model}, optimizers[:1])
    chaos.step = 0
    for held, optimizer in zip((model, twin), optimizers, strict=True):
        held(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    different = [
        name
        for (name, one), two in zip(model.named_parameters(), twin.parameters(), strict=True)
        if not torch.equal(one, two)
    ]
    moments = [
        torch.equal(optimizers[0].state[model[1].weight][key], optimizers[1].state[twin[1].weight][key])
        for key in ("exp_avg", "exp_avg_sq")
    ]
    assert (different, moments) == ((["1.weight"], [True, True]) if kind == "flip" else ([], [False, True]))
    assert len(said) == 1

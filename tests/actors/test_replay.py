"""A layer and a part of an optimizer are run once more: alike on all peers, and training does not notice."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from everstep.actors.evidence import Check, Evidence
from everstep.actors.faults import Chaos
from everstep.actors.rank.checks import Checks
from everstep.actors.rank.flips import Flips, flip
from everstep.actors.rank.replay import Replay
from everstep.actors.rank.signature import state_sha256, weights_sha256
from everstep.actors.rank.twins import twin_of
from everstep.conf.chaos import Fault
from everstep.policies.world import Generation, Member, Seat, World
from torch import Tensor, nn
from torch.optim import SGD, Adafactor, AdamW, Optimizer, RMSprop
from torch.optim.lr_scheduler import StepLR


class Attention(nn.Module):
    """Has parameters, a child that it never calls, and changes a list and an attribute in its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        mixed, _ = self.inner(x, x, x, need_weights=False)
        return self.norm(x + mixed)  # type: ignore[no-any-return]


class Noting(nn.Module):
    """Changes what it holds in its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))
        self.register_buffer("seen", torch.zeros(1), persistent=False)
        self.calls: list[int] = []
        self.last: Tensor | None = None

    def forward(self, x: Tensor, *, twice: bool = False) -> Tensor:
        self.seen += 1
        self.calls.append(len(x))
        self.last = x * self.scale * (2 if twice else 1)
        return self.last


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.attention = Attention()
        self.noting = Noting()
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight
        self.unused = nn.Linear(3, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.noting(self.attention(self.embedding(tokens)), twice=True)
        return self.head(x)  # type: ignore[no-any-return]


class Rank:
    """A model in training, after two steps."""

    def __init__(
        self, optimizer: Callable[[Any], Optimizer] = AdamW, chaos: Chaos | None = None, autocast: bool = False
    ) -> None:
        torch.manual_seed(1)
        self.model = Model()
        self.optimizer = optimizer(self.model.parameters())
        self.scheduler = StepLR(self.optimizer, 5)
        self.flips = Flips(chaos, {"": self.model}) if chaos is not None else None
        kept = {"optimizer": self.optimizer, "scheduler": self.scheduler}
        self.replay = Replay({"": self.model}, kept, seed=7, flips=self.flips)
        self.outputs: list[Tensor] = []
        self.model.head.register_forward_hook(lambda module, inputs, output: self.outputs.append(output))
        self.optimizer.register_step_pre_hook(lambda *_: self.outputs.append(torch.ones(())))
        for batch in (2, 3):
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = self.model(torch.arange(batch * 5).view(batch, 5) % 11).float().square().mean()
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()

    def run(self, turn: int) -> dict[str, int]:
        return self.replay.run(8, turn)[0]

    def everything(self) -> list[object]:
        """Whatever a replay could have changed."""
        buffers = [held.clone().tolist() for held in self.model.buffers()]
        gradients = [None if held.grad is None else held.grad.tolist() for held in self.model.parameters()]
        noting = self.model.noting
        return [
            weights_sha256(self.model.state_dict()),
            state_sha256({"optimizer": self.optimizer, "scheduler": self.scheduler}),
            *(buffers, gradients, list(noting.calls), id(noting.last), len(self.outputs)),
            *([module.training for module in self.model.modules()], torch.is_grad_enabled()),
            *(torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()),
            [len(module._forward_hooks) for module in self.model.modules()],
            *(self.optimizer.param_groups[0]["lr"], torch.is_autocast_enabled("cpu")),
        ]


LAYERS = ("embedding", "attention.inner", "attention.norm", "noting", "head", "unused")
SETTINGS = {
    "adamw": AdamW,
    "sgd": lambda held: SGD(held, lr=0.1),
    "momentum": lambda held: SGD(held, lr=0.1, momentum=0.9, foreach=True),
    "rmsprop": RMSprop,
    "adafactor": Adafactor,
    "fused": lambda held: AdamW(held, fused=True),
}


@pytest.mark.parametrize("optimizer", SETTINGS)
@pytest.mark.parametrize("autocast", [False, True])
def test_peers_come_to_the_same_and_training_does_not_notice(optimizer: str, autocast: bool) -> None:
    rank, other = (Rank(SETTINGS[optimizer], autocast=autocast) for _ in range(2))
    for turn, layer in enumerate(LAYERS):
        before = rank.everything()
        told, uncovered = rank.replay.run(8, turn)
        assert rank.everything() == before
        torch.rand(turn)
        assert other.replay.run(8, turn) == (told, uncovered)
        of_layer = [name for name in told if f" layer {layer} " in name]
        assert [name.split(" of ")[0] for name in of_layer] == ([] if layer == "unused" else PARTS)
        assert len(told) - len(of_layer) == 2
    assert rank.run(0) != rank.replay.run(16, 0)[0]


PARTS = ["input", "output", "gradients"]


def test_what_was_never_called_is_named() -> None:
    told, uncovered = Rank().replay.run(8, LAYERS.index("unused"))
    assert uncovered == ("layer unused: it was not called in the steps that were looked at",)
    assert [name.split(" of ")[0] for name in told] == ["input", "update"]


def test_a_form_without_the_batch_and_what_varies() -> None:
    (name, *_) = Rank().run(LAYERS.index("noting"))
    assert name == "input of layer noting on float32 1x5x8, True"


@pytest.mark.parametrize("part", ["weight", "moment"])
def test_another_state_shows_in_what_goes_in(part: str) -> None:
    rank, other = Rank(), Rank()
    weight = other.model.embedding.weight
    flip(weight.data if part == "weight" else other.optimizer.state[weight]["exp_avg"], 20, 0)
    one, two = rank.run(0), other.run(0)
    different = {name.split(" of ")[0] for name in one if one[name] != two[name]}
    assert "input" in different
    if part == "moment":
        assert {name for name in one if "layer" in name and one[name] != two[name]} == set()


POINTS = {
    "in_forward": ("flip", {"output"}),
    "in_backward": ("flip", {"gradients"}),
    "in_optimizer": ("flip", {"update"}),
}


@pytest.mark.parametrize("point", POINTS)
def test_a_rank_that_computes_wrongly_again_and_again(point: str) -> None:
    """The middle layer, of which each rank knows; what goes in is the same, what comes out is not."""
    kind, expected = POINTS[point]
    fault = Fault(0, 0, point=point, kind=kind, bit=12, recurring=True)
    chaos = Chaos((fault,), Seat(0), lambda fault, evidence: None)
    rank, other = Rank(), Rank(chaos=chaos)
    chaos.step = 7
    assert other.flips is not None
    assert other.flips.layer == "noting"
    differences: set[str] = set()
    for turn in range(12):
        one, two = rank.run(turn), other.run(turn)
        assert list(one) == list(two)
        differences |= {name.split(" of ")[0] for name in one if one[name] != two[name]}
    assert differences == expected


def test_a_fault_that_strikes_once_does_not_strike_here() -> None:
    chaos = Chaos((Fault(7, 0, point="in_forward", kind="flip", bit=12),), Seat(0), lambda fault, evidence: None)
    rank, other = Rank(), Rank(chaos=chaos)
    chaos.step = 7
    assert rank.run(LAYERS.index("noting")) == other.run(LAYERS.index("noting"))
    assert chaos


class Hoarder(AdamW):
    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters)
        self.masters = [torch.zeros(3)]


def test_what_may_hold_more_than_it_shows_is_left_alone() -> None:
    _, uncovered = Rank(Hoarder).replay.run(8, 0)
    assert uncovered == ("the update of embedding.weight[0:11]: Hoarder keeps masters for itself",)


class Choosy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Any, length: int = 0) -> Any:
        return self.weight * (x["x"] if isinstance(x, dict) else x.view(-1)[:length].sum())


@pytest.mark.parametrize(
    ("calls", "reason"),
    [
        ([((Ellipsis,), {})], "it is called with something of type ellipsis"),
        ([((torch.ones(3), 2), {}), ((torch.ones(3), 3), {})], "it is called in several ways"),
        ([((torch.ones(3), 2), {}), ((torch.ones(3, 1), 2), {})], "it is called in several ways"),
        ([((torch.ones(3), 2), {}), (({"x": torch.ones(3)},), {})], "it is called in several ways"),
    ],
)
def test_calls_that_cannot_be_repeated(calls: list[Any], reason: str) -> None:
    model = Choosy()
    replay = Replay({"": model}, {}, seed=7)
    for args, kwargs in calls:
        if args[0] is Ellipsis:
            model.forward = lambda x: x  # type: ignore[method-assign]
        model(*args, **kwargs)
    assert replay.run(8, 0) == ({}, (f"layer : {reason}",))


def test_sizes_that_vary_are_left_out_of_the_form() -> None:
    model = nn.Linear(4, 2)
    replay = Replay({"": model}, {}, seed=7)
    model(torch.ones(2, 3, 4))
    assert "1x3x4" in next(iter(replay.run(8, 0)[0]))
    model(torch.ones(2, 9, 4))
    assert "1x64x4" in next(iter(replay.run(8, 0)[0]))


def test_what_is_evaluated_says_nothing_of_training() -> None:
    model = nn.Linear(4, 2)
    replay = Replay({"": model}, {}, seed=7)
    with torch.no_grad():
        model(torch.ones(2, 9, 4))
    model(torch.ones(2, 3, 4))
    assert "1x3x4" in next(iter(replay.run(8, 0)[0]))


def test_a_twin_shares_no_tensor_and_calls_no_hook() -> None:
    layer = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    called = []
    layer[0].register_forward_hook(lambda *_: called.append("forward"))
    layer[1].register_full_backward_hook(lambda *_: called.append("backward"))
    twin = twin_of(layer)
    twin(torch.randn(3, 2)).sum().backward()
    assert called == []
    assert all(held.grad is None for held in layer.parameters())
    held, others = layer.state_dict(), twin.state_dict()
    assert list(held) == list(others)
    assert all(held[name].data_ptr() != others[name].data_ptr() for name in held)
    assert int(layer[1].num_batches_tracked) == 0


def test_what_is_compiled_is_not_watched() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].compile()
    replay = Replay({"": model}, {}, seed=7)
    assert [len(layer._forward_pre_hooks) for layer in model] == [1, 0]
    assert replay.run(8, 1) == ({}, ("layer 1: it is compiled",))


def test_layers_are_watched_in_the_steps_before_a_replay_only() -> None:
    rank = Rank()
    world = World(Generation(1, 1), tuple(Member(f"rank-{place}", Seat(place)) for place in range(3)))
    said: list[Evidence] = []
    checks = Checks("rank-0", 4, 10, lambda: {"a": 1}, said.append, rank.replay)
    watched = []
    for step in range(1, 11):
        checks.at(step, world)
        watched.append(len(rank.model.attention.norm._forward_pre_hooks) > 0)
    assert watched == [False, False, True, False, False, False, True, False, False, False]
    kinds = [(message.check, message.step) for message in said]
    replayed = [(kind, step) for step in (4, 8) for kind in (Check.STATE, Check.REPLAY)]
    assert kinds == [*replayed, (Check.STATE, 10)]  # a layer is watched in the step before only
    assert {message.among for message in said} == {()}  # nobody in particular: all of the world
    assert any("layer embedding" in name for name in said[1].signatures)
    assert any("layer attention.inner" in name for name in said[3].signatures)

"""Gradients of every kind of loop and model, through the death of ranks, to the bit those of a plain loop."""

import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import everstep
import pytest
import torch
from everstep.conf.chaos import Fault, FaultPoint
from ray import cloudpickle
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from .drive import QUICK, assert_as_reference
from .notes import Notes
from .pieces import WIDTH, Samples, gradients, mlp, mse

cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Odd(nn.Module):
    """Tied, frozen, never used, and used by some microbatches only."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, WIDTH)
        self.head = nn.Linear(WIDTH, 16, bias=False)
        self.head.weight = self.embedding.weight
        self.frozen = nn.Linear(WIDTH, WIDTH)
        self.frozen.requires_grad_(False)
        self.never = nn.Linear(WIDTH, WIDTH)
        self.seldom = nn.Linear(WIDTH, WIDTH)
        self.once = nn.Linear(WIDTH, WIDTH)

    def forward(self, ids: Tensor, seldom: bool, once: bool) -> Tensor:
        x = self.frozen(self.embedding(ids))
        x = x + self.seldom(x) if seldom else x
        x = x + self.once(x) if once else x
        return functional.cross_entropy(self.head(x), (ids + 1) % 16)


def odd_parameters_and_both_forms(ctx: Any) -> None:
    model = Odd()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    run = ctx.begin(model=model, optimizer=optimizer, data=everstep.Microbatches(Samples(), size=2), steps=4)
    notes = Notes(ctx.config["notes"])
    for step in run:
        for batch in step:
            ids = batch["id"] % 16
            first = int(batch["id"][0])
            # Nobody uses `once` after the first step, so its moments and weights must stay.
            loss = model(ids, seldom=first % 3 == 0, once=step.number == 0 and first % 2 == 0)
            if first % 2:
                step.backward(loss, weight=1 + first % 5)
            else:
                with step.microbatch(weight=1 + first % 5) as micro:
                    (0.25 * loss).backward()
                    (0.75 * model(ids, seldom=first % 4 == 0, once=False)).backward()
                    micro.loss = loss
            notes.write("microbatch", step.number, batch["id"], loss=loss)
        notes.write("step", step.number, loss=step.loss, weight=step.weight, gradients=gradients(model))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    notes.write("end", model=model, optimizer=optimizer)


@pytest.mark.parametrize("point", [FaultPoint.IN_BACKWARD, FaultPoint.AFTER_VOTE])
def test_odd_parameters_and_both_forms_of_a_microbatch(point: FaultPoint, tmp_path: Path) -> None:
    outcome = assert_as_reference(odd_parameters_and_both_forms, tmp_path, [Fault(2, 1, point=point)])
    by_step = [outcome.notes[f'["step", {step}]']["gradients"] for step in range(4)]
    assert all(held["never.weight"] is held["frozen.weight"] is None for held in by_step)
    assert [held["once.weight"] is None for held in by_step] == [False, True, True, True]


def several_models_that_thaw_and_freeze(ctx: Any) -> None:
    """The decoder's head is the encoder's embedding; one layer is trained from step 2 on, another until step 2."""
    encoder = nn.ModuleDict({"embedding": nn.Embedding(16, WIDTH), "inner": nn.Linear(WIDTH, WIDTH)})
    decoder = nn.ModuleDict({"inner": nn.Linear(WIDTH, WIDTH), "head": nn.Linear(WIDTH, 16, bias=False)})
    decoder["head"].weight = encoder["embedding"].weight
    encoder["inner"].requires_grad_(False)
    models = {"encoder": encoder, "decoder": decoder}
    optimizers = {
        "encoder": torch.optim.SGD(encoder.parameters(), lr=0.1, momentum=0.9),
        "decoder": torch.optim.Adam(decoder["inner"].parameters(), lr=0.01),
    }
    data = everstep.Microbatches(Samples(), size=2)
    run = ctx.begin(model=models, optimizer=optimizers, data=data, steps=5)
    notes = Notes(ctx.config["notes"])
    for step in run:
        for batch in step:
            ids = batch["id"] % 16
            x = decoder["inner"](encoder["inner"](encoder["embedding"](ids)).tanh())
            step.backward(functional.cross_entropy(decoder["head"](x), (ids + 1) % 16), weight=len(ids))
        notes.write("step", step.number, loss=step.loss, **{name: gradients(held) for name, held in models.items()})
        torch.nn.utils.clip_grad_value_(encoder.parameters(), 0.01)
        for optimizer in optimizers.values():
            optimizer.step()
        if step.number == 1:
            encoder["inner"].requires_grad_(True)
        if step.number == 2:
            decoder["inner"].requires_grad_(False)
    notes.write("end", **models, **{f"optimizer of {name}": held for name, held in optimizers.items()})


@pytest.mark.parametrize("step", [2, 3])
def test_several_models_of_which_parts_thaw_and_freeze(step: int, tmp_path: Path) -> None:
    faults = [Fault(step, 1, point=FaultPoint.LAST_BUCKET)]
    outcome = assert_as_reference(several_models_that_thaw_and_freeze, tmp_path, faults)
    inner = [outcome.notes[f'["step", {step}]'] for step in range(5)]
    assert [held["encoder"]["inner.weight"] is None for held in inner] == [True, True, False, False, False]
    assert [held["decoder"]["inner.weight"] is None for held in inner] == [False, False, False, True, True]


def half_precision(ctx: Any) -> None:
    """One model whose parameters are bf16, one that computes in bf16 under autocast."""
    models = {"bf16": mlp(nn.GELU()).to(torch.bfloat16), "autocast": mlp(nn.GELU())}
    optimizers = {name: torch.optim.AdamW(model.parameters(), lr=0.01) for name, model in models.items()}
    data = everstep.Microbatches(Samples(), size=2)
    run = ctx.begin(model=models, optimizer=optimizers, data=data, steps=3)
    notes = Notes(ctx.config["notes"])
    for step in run:
        for batch in step:
            x, y, weight = batch["x"], batch["y"], 1 + int(batch["id"][0]) / 7
            with torch.autocast("cpu", torch.bfloat16):
                loss = functional.mse_loss(models["autocast"](x), y)
            low = functional.mse_loss(models["bf16"](x.bfloat16()), y.bfloat16())
            if step.number == 1:
                with step.microbatch(weight) as micro:
                    loss.backward()
                    low.backward()
                    micro.loss = low
            else:
                # In bf16, and so is the weight that it is given.
                step.backward(loss.bfloat16() + low, weight)
        assert models["bf16"][0].weight.grad.dtype is torch.bfloat16
        held = {name: gradients(model) for name, model in models.items()}
        notes.write("step", step.number, loss=step.loss, weight=step.weight, **held)
        for name, model in models.items():
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizers[name].step()
    notes.write("end", **models, **{f"optimizer of {name}": held for name, held in optimizers.items()})


def test_bf16_parameters_and_autocast(tmp_path: Path) -> None:
    assert_as_reference(half_precision, tmp_path, [Fault(1, 2)])


class Checkpointed(nn.Module):
    """Drops out inside of what is computed again in the backward."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)
        self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Dropout(0.3))
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        return self.last(checkpoint(self.inner, self.first(x), use_reentrant=self.reentrant))


def one_model(ctx: Any) -> None:
    kind = ctx.config["kind"]
    if kind.startswith("checkpoint"):
        model: Any = Checkpointed(kind == "checkpoint, reentrant")
    else:
        model = torch.compile(mlp(nn.GELU()), backend=kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = ctx.begin(model=model, optimizer=optimizer, data=everstep.Microbatches(Samples(), size=2), steps=3)
    notes = Notes(ctx.config["notes"])
    for step in run:
        for batch in step:
            step.backward(mse(model, batch), weight=len(batch["x"]))
        notes.write("step", step.number, loss=step.loss, gradients=gradients(model))
        optimizer.step()
    notes.write("end", model=model)


compiles = pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")


@pytest.mark.parametrize(
    "kind", ["checkpoint, reentrant", "checkpoint", "aot_eager", pytest.param("inductor", marks=compiles)]
)
def test_checkpointing_and_compiling(kind: str, tmp_path: Path) -> None:
    # A compiler may keep all threads of a rank waiting.
    patient = replace(QUICK, heartbeat=15.0)
    assert_as_reference(one_model, tmp_path, [Fault(1, 1)], ranks=2, config={"kind": kind}, timeouts=patient)


def zeros_with_a_sign(ctx: Any) -> None:
    """One rank owes nothing, so its sum is +0; the gradients are -0."""
    model = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    run = ctx.begin(model=model, optimizer=optimizer, data=everstep.Microbatches(Samples(), size=1), steps=3)
    notes = Notes(ctx.config["notes"])
    for step in run:
        for _ in step:
            step.backward((model.weight * -0.0).sum())
        notes.write("step", step.number, gradient=model.weight.grad)
        optimizer.step()
    notes.write("end", optimizer=optimizer)


def test_the_sign_of_a_zero_does_not_tell_the_size_of_the_world(tmp_path: Path) -> None:
    assert_as_reference(zeros_with_a_sign, tmp_path, [Fault(1, 1), Fault(2, 0)], microbatches=2)

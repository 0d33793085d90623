"""What a training function keeps beside weights: averages, schedulers, buffers, random streams."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import everstep
import pytest
import torch
from everstep.conf.chaos import Fault, FaultPoint
from ray import cloudpickle
from torch import Tensor, nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from .drive import assert_as_reference, refused
from .notes import Notes
from .pieces import WIDTH, Samples, draws, gradients, mlp, mse

cloudpickle.register_pickle_by_value(sys.modules[__name__])

STEPS = 6


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "step": lambda optimizer: lr_scheduler.StepLR(optimizer, 2),
    "multi step": lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [1, 3]),
    "exponential": lambda optimizer: lr_scheduler.ExponentialLR(optimizer, 0.8),
    "cosine": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, STEPS),
    "restarts": lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 2),
    "one cycle": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=STEPS),
    "cyclic": lambda optimizer: lr_scheduler.CyclicLR(optimizer, 0.01, 0.1, step_size_up=2),
    "linear": lambda optimizer: lr_scheduler.LinearLR(optimizer, total_iters=4),
    "constant": lambda optimizer: lr_scheduler.ConstantLR(optimizer, total_iters=3),
    "polynomial": lambda optimizer: lr_scheduler.PolynomialLR(optimizer, total_iters=STEPS),
    "lambda": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "multiplicative": lambda optimizer: lr_scheduler.MultiplicativeLR(optimizer, lambda step: 0.9),
    "sequential": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer,
        [
            lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2),
            lr_scheduler.CosineAnnealingLR(optimizer, STEPS - 2),
        ],
        [2],
    ),
    "chained": lambda optimizer: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(optimizer, total_iters=2), lr_scheduler.ExponentialLR(optimizer, 0.9)]
    ),
    "plateau of the loss": lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0),
    "plateau of an evaluation": lambda optimizer: lr_scheduler.ReduceLROnPlateau(
        optimizer, factor=0.5, patience=0, threshold=0.2
    ),
}


class Counter:
    """Something of the user's own that is kept."""

    def __init__(self) -> None:
        self.seen = 0.0

    def state_dict(self) -> dict[str, float]:
        return {"seen": self.seen}

    def load_state_dict(self, held: dict[str, float]) -> None:
        self.seen = held["seen"]


def schedulers_and_averages(ctx: Any) -> None:
    model = nn.ModuleDict({name: nn.Linear(WIDTH, 2) for name in SCHEDULERS})
    optimizers = {name: torch.optim.SGD(part.parameters(), lr=0.05, momentum=0.9) for name, part in model.items()}
    schedulers = {name: make(optimizers[name]) for name, make in SCHEDULERS.items()}
    ema, counter = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9)), Counter()
    run = ctx.begin(
        model=model,
        optimizer=optimizers,
        scheduler=schedulers,
        data=everstep.Microbatches(Samples(), size=2),
        extra={"ema": ema, "counter": counter},
        steps=STEPS,
    )
    notes = Notes(ctx.config["notes"])
    validation = everstep.Microbatches(Samples(9), size=2)

    def loss_of(batch: dict[str, Any]) -> Tensor:
        return torch.stack([(held(batch["x"]) - batch["y"]).square().mean() for held in model.values()]).mean()

    for step in run:
        for batch in step:
            step.backward(loss_of(batch), weight=len(batch["x"]))
        for optimizer in optimizers.values():
            optimizer.step()
        ema.update_parameters(model)
        counter.seen += step.weight
        evaluated = run.evaluate(validation, lambda batch: {"loss": (loss_of(batch), len(batch["x"]))})
        notes.write("step", step.number, loss=step.loss, evaluated=evaluated)
        for name, scheduler in schedulers.items():
            watched = {"plateau of the loss": step.loss, "plateau of an evaluation": evaluated["loss"]}
            scheduler.step(*([watched[name]] if name in watched else []))
        rates = {name: optimizer.param_groups[0]["lr"] for name, optimizer in optimizers.items()}
        notes.write("rates", step.number, **rates)
    notes.write("end", model=model, optimizers=optimizers, schedulers=schedulers, ema=ema, counter=counter)


def test_every_kind_of_scheduler_and_averages_of_weights(tmp_path: Path) -> None:
    faults = [Fault(2, 1), Fault(4, 0, point=FaultPoint.AFTER_VOTE)]
    outcome = assert_as_reference(schedulers_and_averages, tmp_path, faults)
    rates = [outcome.notes[f'["rates", {step}]'] for step in range(STEPS)]
    for kind in rates[0]:
        assert len({held[kind] for held in rates}) > 1, f"the scheduler {kind} has done nothing"


class Stateful(nn.Module):
    """Counts its calls, in place, and averages what it sees, in a new tensor each time."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)
        self.inner = mlp(nn.Dropout(0.2))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("average", torch.zeros(WIDTH))
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("busy", torch.zeros(3), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.average = 0.9 * self.average + 0.1 * x.detach().mean(0)
        self.busy[int(self.calls) % 3] += 1
        return self.inner(self.norm(x) * self.scale)


def buffers_that_change(ctx: Any) -> None:
    model = Stateful()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    run = ctx.begin(model=model, optimizer=optimizer, data=everstep.Microbatches(Samples(), size=4), steps=4)
    notes = Notes(ctx.config["notes"])
    for step in run:
        for batch in step:
            weight = int(batch["id"][0]) % 4 * 0.3
            loss = mse(model, batch)
            notes.write("microbatch", step.number, batch["id"], loss=loss, **dict(model.named_buffers()))
            if step.number % 2:
                step.backward(loss, weight=weight)
            else:
                with step.microbatch(weight) as micro:
                    loss.backward()
                    micro.loss = loss
        notes.write(
            "step", step.number, loss=step.loss, gradients=gradients(model), buffers=dict(model.named_buffers())
        )
        optimizer.step()
        # The user's own changes are alike on every rank.
        model.scale.mul_(0.9)
        if step.number == 1:
            model.average = torch.full((WIDTH,), 0.25)
    notes.write("end", model=model, optimizer=optimizer, busy=model.busy)


@pytest.mark.parametrize("point", [FaultPoint.IN_FORWARD, FaultPoint.AFTER_VOTE])
def test_changes_of_buffers_are_folded(point: FaultPoint, tmp_path: Path) -> None:
    assert_as_reference(buffers_that_change, tmp_path, [Fault(2, 1, point=point)], buffers="fold")


def a_buffer_that_counts(ctx: Any) -> None:
    model = Stateful()
    model.norm = nn.Identity()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in ctx.begin(model=model, optimizer=optimizer, data=everstep.Microbatches(Samples(), size=4), steps=4):
        for batch in step:
            step.backward(mse(model, batch))
        optimizer.step()


def running_statistics(ctx: Any) -> None:
    model = Stateful()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    ctx.begin(model=model, optimizer=optimizer, data=everstep.Microbatches(Samples(), size=4), steps=4)


def test_a_buffer_that_a_forward_changes_is_refused_by_name(tmp_path: Path) -> None:
    said = refused(a_buffer_that_counts, tmp_path / "counts")
    assert "the forward changed the buffer calls: it would depend on who computes what" in said
    said = refused(running_statistics, tmp_path / "statistics")
    assert "norm (BatchNorm1d) changes its buffers in every forward" in said


class Noisy(Samples):
    """Each sample draws from all streams."""

    def __getitem__(self, item: int) -> dict[str, Any]:
        held = super().__getitem__(item)
        return {**held, "x": held["x"] + torch.rand(WIDTH), "drawn": torch.tensor(draws(), dtype=torch.float64)}


def collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
    batch = torch.utils.data.default_collate(samples)
    batch["collated"] = torch.tensor(draws(), dtype=torch.float64)
    return batch


def draws_from_everywhere(ctx: Any) -> None:
    model = mlp(nn.Dropout(0.3))
    model.register_buffer("noise", torch.rand(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = everstep.Microbatches(Noisy(), size=2, collate_fn=collate)
    run = ctx.begin(model=model, optimizer=optimizer, data=data, steps=4)
    notes = Notes(ctx.config["notes"])
    notes.write("begun", drawn=draws())
    for step in run:
        for batch in step:
            loss = mse(model, batch) + (model.noise * torch.rand(2)).sum()
            notes.write("microbatch", step.number, batch["id"], loss=loss, streams=draws(), **batch)
            step.backward(loss)
        drawn = draws()
        optimizer.step()
        # A buffer that the user changes between two steps is nobody's forward.
        model.noise.copy_(torch.rand(2))
        notes.write("step", step.number, loss=step.loss, drawn=drawn, noise=model.noise)
    notes.write("end", model=model, drawn=draws())


def test_random_streams_of_microbatches_of_samples_and_between_steps(tmp_path: Path) -> None:
    faults = [Fault(1, 1, point=FaultPoint.IN_FORWARD), Fault(2, 0, point=FaultPoint.IN_OPTIMIZER)]
    assert_as_reference(draws_from_everywhere, tmp_path, faults)

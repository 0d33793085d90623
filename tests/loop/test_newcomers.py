"""A rank that comes in later takes over everything that a training function keeps, to the bit."""

import sys
from pathlib import Path
from typing import Any

import everstep
import pytest
import torch
from everstep.conf.chaos import Fault, FaultPoint
from ray import cloudpickle
from torch import nn

from .drive import Outcome, assert_as_reference
from .notes import Notes
from .pieces import Samples, draws, gradients, mlp, mse
from .test_state import buffers_that_change, schedulers_and_averages

cloudpickle.register_pickle_by_value(sys.modules[__name__])

SWAP = {"spares": 1, "recovery": "swap", "lost": 0}


class Heavy(torch.optim.Optimizer):
    """Keeps a master copy and a momentum in float32 for parameters of any dtype."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.05})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                held = self.state[parameter]
                if not held:
                    held["master"] = parameter.float()
                    held["parts"] = [torch.zeros_like(held["master"]), 0]
                held["parts"][0].mul_(0.9).add_(parameter.grad.float())
                held["parts"][1] += 1
                held["master"].sub_(held["parts"][0], alpha=group["lr"])
                parameter.copy_(held["master"])


def everything_at_once(ctx: Any) -> None:
    """bf16 with float32 in an optimizer, layers that are frozen and thawed, evaluations before and in the loop."""
    import time
    from pathlib import Path

    model = mlp(nn.Dropout(0.2)).to(torch.bfloat16)
    optimizers = {"adam": torch.optim.AdamW(model[0].parameters()), "heavy": Heavy(model[2].parameters())}
    data = everstep.Microbatches(Samples(), size=2)
    validation = everstep.Microbatches(Samples(9), size=2)
    run = ctx.begin(model=model, optimizer=optimizers, data=data, steps=6)

    def loss_of(batch: dict[str, Any]) -> torch.Tensor:
        return mse(model, {name: held.to(torch.bfloat16) for name, held in batch.items()}).float()

    def evaluate() -> dict[str, float]:
        return run.evaluate(validation, lambda batch: {"loss": (loss_of(batch), len(batch["x"]))})

    notes = Notes(ctx.config["notes"])
    notes.write("before", first=evaluate(), second=evaluate(), drawn=draws())
    for step in run:
        for place, batch in enumerate(step):
            if (step.number, place) == (3, 0):
                # Whoever is to come in has come.
                deadline = time.monotonic() + 20.0
                while len(list(Path(ctx.config["notes"]).glob("*.notes"))) < ctx.config["processes"]:
                    assert time.monotonic() < deadline, "nobody came in"
                    time.sleep(0.002)
            step.backward(loss_of(batch), weight=len(batch["x"]))
        notes.write("step", step.number, loss=step.loss, gradients=gradients(model))
        for optimizer in optimizers.values():
            optimizer.step()
        if step.number in (0, 3):
            model[0].bias.requires_grad_(step.number == 3)
        notes.write("evaluated", step.number, **evaluate())
    notes.write("end", model=model, optimizers=optimizers, drawn=draws())


def newcomer_of(outcome: Outcome) -> str:
    """The incarnation of the one that came in."""
    (name,) = (member.incarnation for member in outcome.state.members if member.incarnation.startswith("0003"))
    return name


@pytest.mark.parametrize("point", [FaultPoint.IN_BACKWARD, FaultPoint.IN_FORWARD, FaultPoint.AFTER_VOTE])
def test_everything_at_once(point: FaultPoint, tmp_path: Path) -> None:
    # The first forward of step 2 is that of the evaluation before it: then nobody can come in before the step itself.
    faults = [Fault(2, 1, point=point)]
    outcome = assert_as_reference(
        everything_at_once, tmp_path, faults, config={"processes": 4}, plain={"processes": 1}, **SWAP
    )
    assert newcomer_of(outcome)


def test_every_kind_of_scheduler_and_averages_of_weights(tmp_path: Path) -> None:
    outcome = assert_as_reference(schedulers_and_averages, tmp_path, [Fault(2, 1)], **SWAP)
    assert newcomer_of(outcome)


@pytest.mark.parametrize("point", [FaultPoint.IN_BACKWARD, FaultPoint.AFTER_VOTE])
def test_changes_of_buffers(point: FaultPoint, tmp_path: Path) -> None:
    outcome = assert_as_reference(buffers_that_change, tmp_path, [Fault(2, 1, point=point)], buffers="fold", **SWAP)
    assert newcomer_of(outcome)

"""Numbers of steps and of evaluations, through the death of ranks, to the bit those of a plain loop."""

import sys
from pathlib import Path
from typing import Any

import everstep
import pytest
import torch
from everstep.conf.chaos import Fault, FaultPoint
from ray import cloudpickle
from torch import Tensor, nn

from .drive import assert_fired, assert_same, launch, reference
from .notes import Notes
from .pieces import WIDTH, Samples, draws, mlp

cloudpickle.register_pickle_by_value(sys.modules[__name__])

STEPS = 4


class Sentences(Samples):
    """Of different lengths; each draws from all streams."""

    def __getitem__(self, item: int) -> dict[str, Any]:
        return {"id": item, "x": torch.randn(1 + item % 5, WIDTH) + sum(draws())}


def pad(samples: list[dict[str, Any]]) -> dict[str, Any]:
    rows = [sample["x"] for sample in samples]
    return {
        "id": torch.tensor([sample["id"] for sample in samples]),
        "x": nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=float("nan")),
        "tokens": sum(map(len, rows)),
        "drawn": draws(),
    }


def numbers_everywhere(ctx: Any) -> None:
    """Evaluates before the first step, after each one, twice in a row after the second, and when all is over."""
    model = mlp(nn.Dropout(0.2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    workers = ctx.config["workers"]
    data = everstep.Microbatches(Sentences(17), size=3, collate_fn=pad, workers=workers)
    validation = everstep.Microbatches(Sentences(13), size=2, collate_fn=pad, workers=workers)
    run = ctx.begin(model=model, optimizer=optimizer, data=data, steps=STEPS)
    notes = Notes(ctx.config["notes"])

    def losses(batch: dict[str, Any]) -> Tensor:
        rows = batch["x"]
        return model(rows[~rows[..., 0].isnan()]).square().mean(1)

    def evaluate(*key: Any) -> None:
        def loss_of(batch: dict[str, Any]) -> dict[str, Any]:
            assert not model.training
            assert not torch.is_grad_enabled()
            found = losses(batch)
            notes.write("evaluated microbatch", *key, batch["id"], losses=found, drawn=draws(), collated=batch["drawn"])
            short = {"of the short": found.max()} if batch["tokens"] < 5 else {}
            return {"loss": (found.mean(), batch["tokens"]), "drawn": torch.rand(()), **short}

        if ctx.config["evaluates"]:
            notes.write("evaluated", *key, **run.evaluate(validation, loss_of))

    evaluate("before")
    notes.write("begun", drawn=draws())
    for step in run:
        for batch in step:
            loss = losses(batch).mean()
            step.record("loss", loss, weight=batch["tokens"])
            if int(batch["id"][0]) % 2:
                step.record("odd", loss.bfloat16())
            if batch["tokens"] % 3 == 0:
                step.record("weightless", 1 / 3, weight=0)
                step.record("tokens", batch["tokens"])
            notes.write("microbatch", step.number, batch["id"], x=batch["x"], loss=loss, collated=batch["drawn"])
            step.backward(loss, weight=batch["tokens"])
        notes.write("step", step.number, loss=step.loss, weight=step.weight, numbers=step.numbers)
        optimizer.step()
        evaluate(step.number)
        if step.number == 1:
            evaluate(step.number, "again")
        notes.write("after", step.number, drawn=draws())
    evaluate("after all")
    notes.write("end", model=model, optimizer=optimizer, training=model.training)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    config = {"evaluates": True, "workers": 0}
    return reference(numbers_everywhere, tmp_path_factory.mktemp("numbers"), config)


def of_training(notes: dict[str, Any]) -> dict[str, Any]:
    return {key: held for key, held in notes.items() if "evaluated" not in key}


@pytest.mark.parametrize(
    "faults",
    [
        [Fault(2, 1, point=FaultPoint.IN_BACKWARD), Fault(3, 2, point=FaultPoint.BEFORE_VOTE)],
        # These positions begin with evaluations.
        [Fault(0, 0, point=FaultPoint.IN_FORWARD), Fault(STEPS, 1, point=FaultPoint.IN_FORWARD)],
        [Fault(2, 1, point=FaultPoint.AFTER_VOTE)],
    ],
    ids=["in the step", "in the first and the last evaluation", "after the vote of an evaluation"],
)
def test_numbers_of_steps_and_evaluations(faults: list[Fault], expected: dict[str, Any], tmp_path: Path) -> None:
    outcome = launch(numbers_everywhere, tmp_path, faults=faults, config={"evaluates": True, "workers": 0})
    assert_fired(outcome, faults)
    assert_same(outcome, expected)
    assert len(outcome.dead) == len(faults)


def test_a_rank_that_dies_in_an_evaluation_between_steps(expected: dict[str, Any], tmp_path: Path) -> None:
    """Its data come from workers, of which none is left."""
    faults = [Fault(2, 1, point=FaultPoint.IN_FORWARD)]
    outcome = launch(numbers_everywhere, tmp_path, 2, faults, {"evaluates": True, "workers": 1})
    assert_fired(outcome, faults)
    assert_same(outcome, expected)
    (dead,) = outcome.dead
    assert '["step", 1]' in dead
    assert '["evaluated", 1]' not in dead
    assert not any(key.startswith('["microbatch", 2') for key in dead)


def test_an_evaluation_does_not_disturb_the_training(expected: dict[str, Any], tmp_path: Path) -> None:
    faults = [Fault(2, 1)]
    outcome = launch(numbers_everywhere, tmp_path, faults=faults, config={"evaluates": False, "workers": 0})
    assert_fired(outcome, faults)
    assert outcome.notes == of_training(expected)
    assert outcome.notes != expected

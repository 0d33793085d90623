"""Data as a run meets it: epochs that end in the middle of a step, and steps of changing size."""

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import everstep
import pytest
import torch
from everstep.conf.chaos import Fault, FaultPoint
from everstep.conf.schedule import BatchSchedule
from ray import cloudpickle

from .drive import assert_as_reference
from .notes import Notes
from .pieces import Samples, gradients, mlp, mse

cloudpickle.register_pickle_by_value(sys.modules[__name__])

LENGTH, SIZE, STEPS = 17, 3, 6
SCHEDULE = {0: 4, 2: 6, 4: 3}


def trains(ctx: Any) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    run = ctx.begin(
        model=model, optimizer=optimizer, data=everstep.Microbatches(Samples(LENGTH), size=SIZE), steps=STEPS
    )
    notes = Notes(ctx.config["notes"])
    for step in run:
        for batch in step:
            loss = mse(model, batch)
            step.backward(loss, weight=int(batch["id"].sum()))
            notes.write("microbatch", step.number, batch["id"].tolist(), loss=loss)
        notes.write("step", step.number, loss=step.loss, weight=step.weight, gradients=gradients(model))
        optimizer.step()
    notes.write("end", model=model, optimizer=optimizer)


BLOCK = 6


def dataset_of(kind: str, folder: str) -> Any:
    """The same few hundred tokens in every kind of data set that a run takes; samples differ from kind to kind."""
    if kind == "torch":
        return torch.utils.data.Subset(torch.utils.data.TensorDataset(torch.arange(300).view(-1, 3) % 32), range(5, 80))
    if kind == "hugging face":
        from datasets import Dataset

        return Dataset.from_dict({"tokens": [[row % 32, row % 7, row % 11] for row in range(40)]}).with_format("torch")
    tokens = everstep.Tokens(f"{folder}/first", BLOCK)
    if kind == "tokens":
        return tokens
    assert kind == "mixture"
    return everstep.Mixture([tokens, everstep.Tokens(f"{folder}/second", BLOCK)], weights=[2, 1])


def embeds(ctx: Any) -> None:
    """A model of tokens; microbatches of other kinds of samples look the same to it."""
    config = ctx.config
    model = torch.nn.Sequential(torch.nn.Embedding(32, 4), torch.nn.Dropout(0.2), torch.nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    data = everstep.Microbatches(dataset_of(config["kind"], config["tokens"]), size=3, workers=config["workers"])
    run = ctx.begin(model=model, optimizer=optimizer, data=data, steps=4)
    notes = Notes(config["notes"])
    for step in run:
        for batch in step:
            held = batch["tokens"] if isinstance(batch, dict) else batch[0] if isinstance(batch, list) else batch
            loss = model(held % 32).square().mean()
            step.backward(loss, weight=float(held.numel()))
            notes.write("microbatch", step.number, held.tolist(), loss=loss)
        notes.write("step", step.number, loss=step.loss, gradients=gradients(model))
        optimizer.step()
    notes.write("end", model=model, optimizer=optimizer)


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two token data sets of several shards."""
    folder = tmp_path_factory.mktemp("tokens")
    for name, first in (("first", 1), ("second", 5)):
        documents = [[(first + place * row) % 31 for place in range(row % 9)] for row in range(60)]
        everstep.write_tokens(folder / name, documents, end=31, vocabulary=32, shard=64, rows=16)
    return str(folder)


@pytest.mark.parametrize(
    ("kind", "workers"), [("torch", 0), ("hugging face", 0), ("tokens", 0), ("mixture", 0), ("mixture", 1)]
)
def test_every_kind_of_data_set_through_a_death(kind: str, workers: int, tokens: str, tmp_path: Path) -> None:
    faults = [Fault(2, 1, point=FaultPoint.IN_BACKWARD)]
    config = {"kind": kind, "tokens": tokens, "workers": workers}
    assert_as_reference(embeds, tmp_path, faults, config=config)


def test_a_schedule_of_sizes_and_a_world_that_is_larger_than_the_step(tmp_path: Path) -> None:
    """Five ranks and three microbatches in the end; an idle one dies there, and a busy one before."""
    faults = [Fault(1, 1), Fault(2, 0, point=FaultPoint.IN_OPTIMIZER), Fault(5, 4, point=FaultPoint.BEFORE_VOTE)]
    outcome = assert_as_reference(trains, tmp_path, faults, ranks=7, microbatches=SCHEDULE)
    samples: Counter[int] = Counter()
    for key in outcome.notes:
        if key.startswith('["microbatch"'):
            samples.update(eval(key)[2])
    # Each epoch holds each sample once, whatever steps it is cut into.
    seen = BatchSchedule.of(SCHEDULE).before(STEPS) * SIZE
    assert sum(samples.values()) == seen
    assert set(samples.values()) == {seen // LENGTH, seen // LENGTH + 1}
    assert seen % LENGTH != 0

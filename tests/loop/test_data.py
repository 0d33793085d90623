"""Data as a run meets it: epochs that end in the middle of a step, and steps of changing size."""

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import everstep
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

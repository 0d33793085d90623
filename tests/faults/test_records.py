"""The numbers of a run through failures are those of the undisturbed run, each step's once, wherever they go."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray.train
from everstep.actors.messages import StepRecord
from everstep.conf.chaos import Fault, FaultPoint
from everstep.orchestrator.drivers import LocalDriver
from everstep.orchestrator.journal import read
from everstep.orchestrator.records import json_lines
from everstep.orchestrator.view import Phase, RunState
from ray import cloudpickle

from .harness import STEPS, plan_of

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def train(ctx: Any) -> None:
    """A small model with a schedule; takes its time, so that heartbeats come in the middle."""
    import time

    import everstep
    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    data = everstep.Microbatches(torch.randn(50, 4, generator=torch.Generator().manual_seed(0)), size=3)
    for step in ctx.begin(model=model, optimizer=optimizer, scheduler=scheduler, data=data, steps=ctx.config["steps"]):
        for batch in step:
            loss = model(batch).square().mean()
            step.backward(loss * float("nan") if step.number == ctx.config.get("nan_at") else loss, weight=3)
            step.record("largest", batch.abs().max(), weight=len(batch))
            time.sleep(0.01)
            if step.number == ctx.config.get("raise_at"):
                raise ValueError("bad batch")
        if not step.skipped:
            optimizer.step()
        scheduler.step()


class Seen(ray.train.UserCallback):  # type: ignore[misc]
    """Keeps what it is told; raises once if asked to."""

    def __init__(self, raises_at: int | None = None) -> None:
        self.raises_at = raises_at
        self.steps: list[int] = []
        self.losses: list[float] = []
        self.exceptions: dict[int, Exception] = {}

    def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
        (said,) = metrics
        self.steps.append(said["step"])
        self.losses.append(said["loss"])
        if said["step"] == self.raises_at:
            raise RuntimeError("my logger is down")

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        self.exceptions = worker_exceptions


def drive(
    folder: Path, ranks: int = 4, chaos: Sequence[Fault] = (), callbacks: Sequence[Any] = (), **config: Any
) -> tuple[RunState, list[StepRecord]]:
    """Train on the local cluster; returns the last state and the lines of the file."""
    plan = plan_of(folder, ranks, chaos, on_nonfinite="skip")
    plan = replace(
        plan,
        train=cloudpickle.dumps(train),
        config={**plan.config, **config},
        folder=str(folder / "kept"),
        callbacks=tuple(callbacks),
        weight_unit="tokens",
    )
    state = LocalDriver().drive(plan, lambda _: None)
    return state, json_lines.read(folder / "kept" / json_lines.FILE)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[StepRecord]:
    state, records = drive(tmp_path_factory.mktemp("undisturbed"))
    assert state.phase is Phase.SUCCEEDED, state.error
    return records


def numbers(records: list[StepRecord]) -> list[StepRecord]:
    """What may not differ from rank to rank, nor from run to run."""
    return [replace(record, seconds=0.0, world=0, at=0.0) for record in records]


def test_every_step_is_recorded_as_it_was_computed(undisturbed: list[StepRecord]) -> None:
    assert [record.step for record in undisturbed] == list(range(STEPS))
    assert [record.lr for record in undisturbed] == [{"SGD": 0.5 ** (1 + step)} for step in range(STEPS)]
    for record in undisturbed:
        assert (record.weight, record.microbatches, record.world, record.skipped) == (48.0, 16, 4, None)
        assert record.flops == 6 * 5 * 48.0
        assert 0.0 < record.numbers["largest"] < 10.0
        assert record.seconds > 0.02


@pytest.mark.parametrize("point", [FaultPoint.IN_BACKWARD, FaultPoint.AFTER_VOTE])
def test_the_death_of_the_leader_loses_no_record(
    point: FaultPoint, undisturbed: list[StepRecord], tmp_path: Path
) -> None:
    faults = [Fault(3, 0, point=point), Fault(5, 1, point=point)]
    state, records = drive(tmp_path, chaos=faults)
    assert state.phase is Phase.SUCCEEDED, state.error
    assert len(state.faults_fired) == 2
    assert numbers(records) == numbers(undisturbed)
    assert [record.world for record in records][-1] == 2
    assert state.record == records[-1]
    assert state.metrics["numbers"] == dict(records[-1].numbers)
    assert state.warnings == ()


def test_a_callback_that_raises_is_told_of_and_harms_nothing(undisturbed: list[StepRecord], tmp_path: Path) -> None:
    raising, quiet = Seen(raises_at=2), Seen()
    state, records = drive(tmp_path, ranks=2, callbacks=(raising, quiet))
    assert state.phase is Phase.SUCCEEDED, state.error
    assert state.warnings == (
        "callback Seen: RuntimeError: my logger is down; the run goes on, it is called again for the steps that follow",
    )
    assert numbers(records) == numbers(undisturbed)
    for seen in (raising, quiet):
        assert seen.steps == list(range(STEPS))
        assert seen.losses == [record.loss for record in undisturbed]
        assert seen.exceptions == {}
    journal = read(tmp_path / "kept")
    assert [entry["text"] for entry in journal if entry["what"] == "warning"] == list(state.warnings)


def test_a_skipped_step_is_a_record_too(tmp_path: Path) -> None:
    state, records = drive(tmp_path, ranks=2, nan_at=2)
    assert state.phase is Phase.SUCCEEDED, state.error
    assert [record.step for record in records] == list(range(STEPS))
    assert [record.step for record in records if record.skipped] == [2]
    assert records[2].lr == {"SGD": 0.125}
    assert '"loss": "NaN"' in (tmp_path / "kept" / json_lines.FILE).read_text().splitlines()[2]


def test_a_run_that_fails_keeps_its_records_and_tells_callbacks_why(
    undisturbed: list[StepRecord], tmp_path: Path
) -> None:
    seen = Seen()
    state, records = drive(tmp_path, ranks=2, callbacks=(seen,), raise_at=4)
    assert state.phase is Phase.FAILED
    assert numbers(records) == numbers(undisturbed)[:4]
    assert seen.steps == [0, 1, 2, 3]
    assert set(seen.exceptions) <= {0, 1}
    assert any("ValueError: bad batch" in str(error) for error in seen.exceptions.values())

"""How runs end early, and what surprises leave out or survive, beside a plain loop."""

import sys
from pathlib import Path
from typing import Any

import everstep
import pytest
import torch
from everstep.actors.rank.order import SampleOrder
from everstep.conf.chaos import Fault, FaultPoint
from everstep.orchestrator.view import Phase
from ray import cloudpickle

from .drive import SEED, assert_as_reference, launch, refused
from .notes import Notes
from .pieces import Samples, gradients, mlp, mse

cloudpickle.register_pickle_by_value(sys.modules[__name__])

LENGTH, STEPS = 37, 3
# Of the second microbatch of step 1, and of no other one: the run ends before the epoch does.
POISON = SampleOrder(LENGTH, 2, 6, SEED, shuffle=True).samples(1, 1)[0]


def stops(ctx: Any) -> None:
    how = ctx.config["how"]
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = ctx.begin(model=model, optimizer=optimizer, data=everstep.Microbatches(Samples(), size=2), steps=6)
    notes = Notes(ctx.config["notes"])
    for step in run:
        for batch in step:
            if how == "one rank" and step.number == 2 and ctx.replica == ctx.config["replica"]:
                run.stop()
            step.record("loss", loss := mse(model, batch))
            step.backward(loss)
        optimizer.step()
        notes.write("step", step.number, loss=step.loss, numbers=step.numbers)
        # What everybody knows between two steps makes the next one the last.
        if (how == "all ranks" and step.number == 1) or (how == "a number" and step.numbers["loss"] > 1.4):
            run.stop()
    notes.write("end", model=model, applied=step.number)


@pytest.mark.parametrize("how", ["one rank", "all ranks", "a number"])
def test_all_ranks_stop_after_the_same_step(how: str, tmp_path: Path) -> None:
    faults = [Fault(2, 1, point=FaultPoint.AFTER_VOTE if how == "all ranks" else FaultPoint.IN_BACKWARD)]
    config = {"how": how, "replica": 2}
    outcome = assert_as_reference(stops, tmp_path, faults, config=config, plain={"replica": 0})
    assert outcome.state.metrics["steps"] == 3, "not where it was to stop"


def not_finite(ctx: Any) -> None:
    """In step 1 a loss, in step 2 only a gradient, in step 3 what has no weight, in step 4 nothing has any."""
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    run = ctx.begin(model=model, optimizer=optimizer, data=everstep.Microbatches(Samples(), size=2), steps=6)
    notes = Notes(ctx.config["notes"])
    for step in run:
        for batch in step:
            loss = mse(model, batch)
            step.record("squares", loss)
            special = int(batch["id"][0]) % 3 == 0
            if special and step.number == 1:
                loss = loss * float("inf")
            if special and step.number == 2:
                loss = loss + (model[0].weight * 0).square().sum().sqrt()
            if special and step.number == 3:
                loss = loss * float("nan")
            step.backward(loss, weight=0 if step.number == 4 or (special and step.number == 3) else 2)
        before = [parameter.clone() for parameter in model.parameters()]
        optimizer.step()
        same = all(torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))
        notes.write(
            "step",
            step.number,
            loss=step.loss,
            weight=step.weight,
            skipped=step.skipped,
            same=same,
            numbers=step.numbers,
            gradients=gradients(model),
        )
    notes.write("end", model=model, optimizer=optimizer)


def test_steps_that_are_not_finite_are_skipped(tmp_path: Path) -> None:
    faults = [Fault(1, 1), Fault(2, 0, point=FaultPoint.AFTER_VOTE)]
    outcome = assert_as_reference(not_finite, tmp_path, faults, on_nonfinite="skip")
    steps = [outcome.notes[f'["step", {step}]'] for step in range(6)]
    assert [held["skipped"] is not None for held in steps] == [False, True, True, False, True, False]
    assert [held["same"] for held in steps] == [False, True, True, False, True, False]
    assert set(steps[1]["gradients"].values()) == {None}


def test_a_step_that_is_not_finite_ends_the_run_though_a_rank_dies_in_it(tmp_path: Path) -> None:
    faults = [Fault(1, 1)]
    said = refused(not_finite, tmp_path, ranks=3, faults=faults, microbatches=6)
    assert "of step 1 is not finite: its loss is inf" in said


def poisoned(ctx: Any) -> None:
    """A sample that nobody can compute; the reference leaves its microbatch out."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = ctx.begin(model=model, optimizer=optimizer, data=everstep.Microbatches(Samples(LENGTH), size=2), steps=STEPS)
    notes = Notes(ctx.config["notes"])
    for step in run:
        for batch in step:
            if POISON in batch["id"]:
                if ctx.config["plain"]:
                    step.skip("poison")
                    continue
                raise ValueError("this sample has no label")
            step.backward(mse(model, batch), weight=3)
            step.record("samples", len(batch["id"]))
        notes.write("step", step.number, loss=step.loss, weight=step.weight, numbers=step.numbers)
        optimizer.step()
    notes.write("end", model=model)


def test_a_microbatch_that_nobody_can_compute_is_left_out(tmp_path: Path) -> None:
    """Two ranks are lost to it; the first to meet it is rank 1, the killed one is the last."""
    outcome = assert_as_reference(
        poisoned,
        tmp_path,
        [Fault(1, 3, point=FaultPoint.BEFORE_FORWARD)],
        ranks=4,
        config={"plain": False},
        plain={"plain": True},
        lost=3,
        on_poison="skip",
    )
    (warning,) = outcome.state.warnings
    assert f"microbatch 1 of step 1 is poison and is skipped (samples {POISON}, " in warning
    assert "ValueError: this sample has no label" in warning


def test_a_microbatch_that_nobody_can_compute_ends_the_run(tmp_path: Path) -> None:
    outcome = launch(poisoned, tmp_path, 3, [Fault(0, 2)], {"plain": False})
    assert outcome.state.phase is Phase.FAILED
    assert outcome.leftovers == []
    error = outcome.state.error or ""
    assert f"microbatch 1 of step 1 is poison, it failed on two ranks (samples {POISON}, " in error
    assert "ValueError: this sample has no label" in error
    assert "in poisoned" in (outcome.state.traceback or "")


def trouble_on_one_rank(ctx: Any) -> None:
    import resource
    from pathlib import Path

    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = ctx.begin(model=model, optimizer=optimizer, data=everstep.Microbatches(Samples(), size=2), steps=4)
    notes = Notes(ctx.config["notes"])
    for step in run:
        for batch in step:
            if step.number == 1 and ctx.replica == ctx.config["replica"]:
                if ctx.config["how"] == "memory":
                    pages = int(Path("/proc/self/statm").read_text().split()[0])
                    limit = pages * resource.getpagesize() + 2**24
                    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
                    bytearray(2**30)
                raise OSError("the disk of this node is gone")
            step.backward(mse(model, batch))
        notes.write("step", step.number, loss=step.loss)
        optimizer.step()
    notes.write("end", model=model)


@pytest.mark.parametrize(("how", "line"), [("memory", "MemoryError"), ("disk", "OSError: the disk of this node")])
def test_trouble_of_one_rank_is_that_ranks(how: str, line: str, tmp_path: Path) -> None:
    outcome = assert_as_reference(
        trouble_on_one_rank,
        tmp_path,
        [Fault(2, 0)],
        ranks=4,
        config={"how": how, "replica": 1},
        plain={"replica": None},
        lost=2,
    )
    assert line in (outcome.state.first_cause or "")
    assert "rank 1.0" in (outcome.state.first_cause or "")


def computes_otherwise(ctx: Any) -> None:
    """Some ranks get the last bit of every loss wrong."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = ctx.begin(model=model, optimizer=optimizer, data=everstep.Microbatches(Samples(), size=2), steps=3)
    notes = Notes(ctx.config["notes"])
    for step in run:
        for batch in step:
            loss = mse(model, batch)
            if ctx.replica in ctx.config["wrong"]:
                with torch.no_grad():
                    loss.view(torch.int32).bitwise_xor_(1)
            step.backward(loss)
        notes.write("step", step.number, loss=step.loss)
        optimizer.step()
    notes.write("end", model=model)


def test_a_rank_that_computes_otherwise_is_shut_out_before_the_first_step(tmp_path: Path) -> None:
    """Another one dies while it proves itself."""
    faults = [Fault(0, 3, point=FaultPoint.IN_BACKWARD), Fault(2, 0)]
    outcome = assert_as_reference(
        computes_otherwise, tmp_path, faults, ranks=5, config={"wrong": [1]}, plain={"wrong": []}, lost=3
    )
    # It may go in the recovery from another loss, whose cause is told then.
    assert any("1.0" in record.lost for record in outcome.state.recoveries)
    (said,) = [entry["error"] for entry in outcome.journal if entry["what"] == "raised"]
    assert "ranks 1.0 compute other gradients than the majority for the same microbatch" in str(said)


def test_two_ranks_that_differ_end_with_one_line(tmp_path: Path) -> None:
    said = refused(computes_otherwise, tmp_path, config={"wrong": [1]})
    assert "ranks 0.0, 1.0 compute different gradients for the same microbatch, and no majority says which" in said


def test_without_a_probe_whoever_computes_otherwise_trains_on(tmp_path: Path) -> None:
    outcome = launch(computes_otherwise, tmp_path, 3, config={"wrong": [1]}, probe=False)
    assert outcome.state.phase is Phase.SUCCEEDED
    assert outcome.dead == []

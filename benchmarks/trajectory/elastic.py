"""everstep's arms, on processes of this machine."""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import everstep
from everstep.benchmarks.timeline import read_traces
from everstep.benchmarks.trajectory import cpu_time
from everstep.benchmarks.trajectory.course import BUCKET_MIB, SEQUENCES, Course, Outcome, build, computed, dataset
from everstep.conf.elastic import ElasticConfig
from everstep.conf.scaling import Scaling
from everstep.examples.gpt import next_token_loss
from everstep.orchestrator.drivers import LocalDriver
from everstep.orchestrator.plan import RunPlan
from everstep.orchestrator.records import json_lines
from everstep.orchestrator.view import Phase, RunState
from ray import cloudpickle
from torch.nn.utils import clip_grad_norm_


@dataclass(frozen=True)
class Arm:
    """How everstep trains the course.

    Attributes:
        reduction, workload: as in ``ElasticConfig``.
        disturbed: whether ranks are lost on the way.
    """

    reduction: str
    workload: str = "balanced"
    disturbed: bool = True


def train(ctx: everstep.RankContext) -> None:
    """One rank."""
    course = Course(**ctx.config["course"])
    model, optimizer, scheduler = build(course)
    data = everstep.Microbatches(dataset(), size=SEQUENCES)
    run = ctx.begin(model=model, optimizer=optimizer, scheduler=scheduler, data=data, steps=course.steps)
    if ctx.replica == 0:
        cpu_time.note(Path(ctx.config["folder"]), ctx.config["driver"])
    for step in run:
        for windows in step:
            step.backward(next_token_loss(model, windows), weight=windows[:, 1:].numel())
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()


def run(arm: Arm, course: Course) -> Outcome:
    """Train to the end.

    Raises:
        RuntimeError: the run failed, or did not lose those ranks that it should.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plan = RunPlan(
            run="trajectory",
            elastic=ElasticConfig(
                microbatches_per_step=course.microbatches,
                reduction=arm.reduction,
                workload=arm.workload,
                recovery="shrink",
                replace=False,
                seed=course.seed,
                chaos=course.faults if arm.disturbed else (),
                bucket_mib=BUCKET_MIB,
                snapshot_every=0,
            ),
            scaling=Scaling(1, course.ranks),
            train=cloudpickle.dumps(train),
            config={"course": course.as_dict(), "folder": name, "driver": os.getpid()},
            folder=name,
            trace=str(folder / "traces"),
        )
        (folder / "traces").mkdir()
        state = LocalDriver().drive(plan, lambda state: None)
        _check(state, course, arm)
        records = list(json_lines.read(folder / json_lines.FILE))
        return Outcome(
            losses=tuple(record.loss for record in records),
            summed=sum(record.microbatches for record in records),
            computed=computed(list(read_traces(folder / "traces").values())),
            cpu_s=cpu_time.since_noted(folder, os.getpid()),
            weights=str(state.metrics["weights_sha256"]),
        )


def _check(state: RunState, course: Course, arm: Arm) -> None:
    if state.phase is not Phase.SUCCEEDED:
        raise RuntimeError(f"{arm} failed: {state.error}\n{state.traceback or ''}")
    planned = course.faults if arm.disturbed else ()
    missed = [str(fault) for fault in planned if not any(str(fault) in fired for fired in state.faults_fired)]
    if missed or state.metrics["world"] != course.ranks - len(planned):
        raise RuntimeError(f"{arm} ended with {state.metrics['world']} of {course.ranks} ranks; not seen: {missed}")

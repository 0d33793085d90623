"""Runs an example on ranks that are plain processes of this machine, with planned faults and without."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from everstep.conf.run import RunFile, load
from everstep.conf.scaling import Scaling
from everstep.orchestrator.cli import undisturbed_twin
from everstep.orchestrator.trainer import ElasticTrainer

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
# A rank that imports much on a busy machine is silent for long; those that are killed here are found by their sockets.
PATIENT_S = 30.0
LOCALLY = ("cluster=local", f"elastic.timeouts.heartbeat={PATIENT_S}")


def read(name: str, overrides: Sequence[str]) -> RunFile:
    """A run file of the examples, on the local cluster and made small."""
    return load(EXAMPLES / name, [*LOCALLY, *overrides])


def both(run: RunFile, train: Callable[[Any], object], **config: object) -> tuple[dict[str, Any], dict[str, Any]]:
    """Metrics of the run through its faults, which must all have killed a rank, and of the same undisturbed.

    The undisturbed one has a single rank, since the number of ranks must not matter either.

    Args:
        config: changes of ``ctx.config`` for the undisturbed one.
    """
    assert run.elastic.chaos
    disturbed = fit(run, train)
    alone = dataclasses.replace(undisturbed_twin(run), scaling=Scaling(1, 1), config={**run.config, **config})
    undisturbed = fit(alone, train)
    lost = len(run.elastic.chaos)
    assert len(disturbed["faults_fired"]) == lost
    # One that dies while another is still being recovered from belongs to the same recovery.
    assert 1 <= len(disturbed["recoveries"]) <= lost
    assert disturbed["world"] == run.scaling.max_ranks - lost
    assert (undisturbed["world"], undisturbed["recoveries"]) == (1, [])
    return disturbed, undisturbed


def fit(run: RunFile, train: Callable[[Any], object]) -> dict[str, Any]:
    """The metrics of its result."""
    return dict(ElasticTrainer.from_run_file(run, train).fit().metrics)

"""Runs an example on ranks that are plain processes of this machine, with planned faults and without."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from everstep.conf.run import RunFile, load
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
    """Metrics of the run through its faults, which must all have killed a rank, and of its undisturbed twin.

    Args:
        config: changes of the twin's ``ctx.config``.
    """
    assert run.elastic.chaos
    twin = undisturbed_twin(run)
    disturbed = fit(run, train)
    undisturbed = fit(dataclasses.replace(twin, config={**twin.config, **config}), train)
    lost = len(run.elastic.chaos)
    assert len(disturbed["faults_fired"]) == lost
    # One that dies while another is still being recovered from belongs to the same recovery.
    assert 1 <= len(disturbed["recoveries"]) <= lost
    assert disturbed["world"] == undisturbed["world"] - lost == run.scaling.max_ranks - lost
    assert undisturbed["recoveries"] == []
    return disturbed, undisturbed


def fit(run: RunFile, train: Callable[[Any], object]) -> dict[str, Any]:
    """The metrics of its result."""
    return dict(ElasticTrainer.from_run_file(run, train).fit().metrics)

"""The whole program: short, quick, and its one line is the same on Ray with a kill as without."""

import os
import subprocess
import sys

import pytest
from everstep.conf.chaos import Fault
from everstep.conf.elastic import ElasticConfig, Timeouts
from everstep.conf.run import ClusterKind, RunFile
from everstep.conf.scaling import Scaling
from everstep.examples import minimal

from .local import EXAMPLES, PATIENT_S, both, fit


def small(steps: int, ranks: int, *chaos: Fault) -> RunFile:
    return RunFile(
        name="minimal",
        train="minimal.py:train",
        config={"steps": steps},
        elastic=ElasticConfig(
            microbatches_per_step=8, chaos=chaos, replace=False, timeouts=Timeouts(heartbeat=PATIENT_S)
        ),
        scaling=Scaling(1, ranks),
        cluster=ClusterKind.LOCAL,
    )


def test_it_is_short() -> None:
    assert len((EXAMPLES / "minimal.py").read_text().splitlines()) < 60


def test_a_kill_changes_nothing() -> None:
    disturbed, undisturbed = both(small(8, 3, Fault(step=4, replica=1, point="in_transfer")), minimal.train)
    assert disturbed["weights_sha256"] == undisturbed["weights_sha256"]
    assert disturbed["loss"] == undisturbed["loss"]


@pytest.mark.ray
def test_it_runs_as_it_says() -> None:
    played = subprocess.run(
        [sys.executable, "-m", "everstep.examples.minimal"],
        env={name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    undisturbed = fit(small(60, 1), minimal.train)
    # Ray may have something to say of the dead worker, at any time.
    (said,) = (line for line in played.stdout.splitlines() if line.startswith("loss "))
    assert said == f"loss {undisturbed['loss']:.3f}  recovered 1 time(s)  weights {undisturbed['weights_sha256']}"

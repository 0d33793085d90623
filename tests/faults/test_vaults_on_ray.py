"""Snapshots in Ray's object store: a vault and then all ranks are killed, and nothing is left when the run is over."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from everstep.benchmarks.raylets import raylets
from everstep.conf.chaos import Fault, FaultPoint
from everstep.orchestrator import ray_nodes
from everstep.orchestrator.drivers import RayDriver
from everstep.orchestrator.names import NAMESPACE
from everstep.orchestrator.view import Phase, RunState
from ray.cluster_utils import Cluster

from .harness import Outcome, open_gate, plan_of

pytestmark = pytest.mark.ray
RANKS, GATE = 2, 4


@pytest.fixture(scope="module", autouse=True)
def two_raylets() -> Iterator[Cluster]:
    with raylets(1, 1) as cluster:
        yield cluster


def test_all_ranks_are_killed_and_the_run_goes_on_from_vaults(undisturbed: Outcome, tmp_path: Path) -> None:
    faults = [
        # Whichever snapshot is the first one.
        *(Fault(step, 0, point=FaultPoint.IN_SNAPSHOT, target="vault") for step in range(1, GATE + 1)),
        *(Fault(GATE, place, point=FaultPoint.IN_BACKWARD) for place in range(RANKS)),
    ]
    plan = plan_of(tmp_path, RANKS, faults, gates=(GATE,), snapshot_every=1)
    free = ray_nodes.store_room()

    def when_it_is_saved(state: RunState) -> None:
        if "with 2 copies" in state.snapshots:
            open_gate(tmp_path, GATE)

    state = RayDriver().drive(plan, when_it_is_saved)
    assert state.phase is Phase.SUCCEEDED, (state.error, state.traceback)
    assert len(state.faults_fired) == 1 + RANKS, state.faults_fired
    assert state.metrics["weights_sha256"] == undisturbed.weights
    assert "restore from vault" in state.recoveries[0].decision
    assert not [entry for entry in ray.util.list_named_actors(all_namespaces=True) if entry["namespace"] == NAMESPACE]
    assert len(free) == 2
    deadline = time.monotonic() + 30.0
    while ray_nodes.store_room() != free:
        assert time.monotonic() < deadline, "objects were left in the object store"
        time.sleep(0.05)

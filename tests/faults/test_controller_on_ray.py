"""On Ray the controller's actor is killed: it comes back by itself, under a new term, and its driver goes on."""

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import ray
from everstep.benchmarks.raylets import raylets
from everstep.conf.chaos import Fault, FaultPoint
from everstep.orchestrator import journal
from everstep.orchestrator.drivers import RayDriver
from everstep.orchestrator.names import NAMESPACE, controller_name, prefix, rank_name
from everstep.orchestrator.view import Phase, RunState
from ray import cloudpickle
from ray.cluster_utils import Cluster

from .harness import Outcome, assert_as_if_undisturbed, open_gate, plan_of, read

cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.ray


@pytest.fixture(scope="module", autouse=True)
def one_raylet() -> Iterator[Cluster]:
    with raylets(4) as cluster:
        yield cluster


def pids(run: str) -> dict[str, int]:
    """Of the run's actors that live now, by name."""
    actors = [held for held in ray._private.state.actors().values() if held["State"] == "ALIVE"]
    return {held["Name"]: int(held["Pid"]) for held in actors if held["Name"].startswith(prefix(run))}


class Killer:
    """Looks on as a driver does, and kills the controller once."""

    def __init__(self, folder: Path, phase: Phase, step: int, gate: int) -> None:
        self._folder = folder
        self._phase = phase
        self._step = step
        self.gate = gate
        self.looks: list[RunState] = []
        self.killed = 0
        self.signal = signal.SIGKILL

    def __call__(self, state: RunState) -> None:
        self.looks.append(state)
        if not self.killed and state.phase is self._phase and state.step >= self._step:
            self.killed = pids(self._folder.name)[controller_name(self._folder.name)]
            os.kill(self.killed, self.signal)
        if self.killed and state.generation:
            # The next one has heard of the ranks.
            open_gate(self._folder, self.gate)


def drive(folder: Path, killer: Killer, faults: Sequence[Fault] = ()) -> Outcome:
    plan = plan_of(folder, ranks=4, chaos=faults, gates=[killer.gate], kept=True)
    state = RayDriver().drive(plan, killer)
    assert killer.killed
    assert not psutil.pid_exists(killer.killed)
    assert not [entry for entry in ray.util.list_named_actors(all_namespaces=True) if entry["namespace"] == NAMESPACE]
    from ray.experimental.internal_kv import _internal_kv_list

    assert _internal_kv_list(f"{plan.run}/", namespace=NAMESPACE) == []
    return read(Outcome(state, journal.read(Path(plan.folder or "")), []), folder)


def test_it_dies_while_ranks_train(undisturbed: Outcome, tmp_path: Path) -> None:
    outcome = drive(tmp_path, Killer(tmp_path, Phase.RUNNING, 2, gate=5))
    assert_as_if_undisturbed(outcome, undisturbed, [], lost=0)
    assert outcome.state.metrics["generation"] == "1.1"
    assert outcome.state.recoveries == ()
    assert any(entry["what"] == "adopted" for entry in outcome.journal)


def test_it_dies_in_a_recovery(undisturbed: Outcome, tmp_path: Path) -> None:
    # The others wait in this step, so the recovery cannot end.
    faults = [Fault(3, 2, point=FaultPoint.BEFORE_FORWARD)]
    outcome = drive(tmp_path, Killer(tmp_path, Phase.RECOVERING, 0, gate=3), faults)
    assert_as_if_undisturbed(outcome, undisturbed, faults, lost=1)
    assert len(outcome.state.recoveries) == 1


def test_one_that_is_stopped_is_replaced_by_its_driver(undisturbed: Outcome, tmp_path: Path) -> None:
    """Ray sees processes that end, not those that are stopped."""
    killer = Killer(tmp_path, Phase.RUNNING, 2, gate=5)
    killer.signal = signal.SIGSTOP
    outcome = drive(tmp_path, killer)
    assert_as_if_undisturbed(outcome, undisturbed, [], lost=0)
    assert outcome.state.metrics["generation"] == "1.1"


@pytest.mark.parametrize("source", ["vault", "storage"])
def test_it_dies_with_all_ranks(undisturbed: Outcome, tmp_path: Path, source: str) -> None:
    """The next one goes on from vaults; or from storage at once if they died too, without waiting for any to come."""
    gate, dead = 5, list[int]()
    saving = {"vault": {"snapshot_every": 1}, "storage": {"snapshot_every": 1, "checkpoint_every": 2}}[source]
    spared = ("sentinel",) if source == "storage" else ("sentinel", "vault")
    plan = plan_of(tmp_path, ranks=2, gates=[gate], kept=True, **saving)
    # Whoever waits for vaults that may still come waits so long, which is longer than this test may take.
    elastic = replace(plan.elastic, timeouts=replace(plan.elastic.timeouts, orphan=300.0))

    def look(state: RunState) -> None:
        stored = source == "vault" or any(tmp_path.rglob("manifest.json"))
        # Nobody passes the gate before something is saved; steps are shorter than that takes.
        if dead or state.step < gate or not stored or not state.snapshots.startswith("step"):
            return
        doomed = {name: pid for name, pid in pids(plan.run).items() if not name.startswith(spared_names)}
        assert len(doomed) == 3 + (source == "storage")
        for pid in doomed.values():
            os.kill(pid, signal.SIGKILL)
            dead.append(pid)
        open_gate(tmp_path, gate)

    spared_names = tuple(rank_name(plan.run, name) for name in spared)
    state = RayDriver().drive(replace(plan, elastic=elastic), look)
    assert state.phase is Phase.SUCCEEDED, (state.error, state.traceback)
    assert dead
    assert not any(psutil.pid_exists(pid) for pid in dead)
    assert source in state.sources[-1], state.sources
    assert state.metrics["weights_sha256"] == undisturbed.weights

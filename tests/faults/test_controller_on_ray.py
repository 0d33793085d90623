"""On Ray the controller's actor is killed: it comes back by itself, under a new term, and its driver goes on."""

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest
import ray
from everstep.benchmarks.raylets import raylets
from everstep.conf.chaos import Fault, FaultPoint
from everstep.orchestrator import journal
from everstep.orchestrator.drivers import RayDriver
from everstep.orchestrator.names import NAMESPACE, controller_name
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


def controller_pid(run: str) -> int:
    """Of the process in which the controller lives now."""
    actors = ray._private.state.actors().values()
    return next(
        int(held["Pid"]) for held in actors if held["Name"] == controller_name(run) and held["State"] == "ALIVE"
    )


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
            self.killed = controller_pid(self._folder.name)
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

"""A chosen few of the scenarios on real Ray with two raylets: the same weights as on the local cluster."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from everstep import connect
from everstep.benchmarks.raylets import raylets
from everstep.conf.chaos import Fault, FaultKind, FaultPoint
from everstep.conf.errors import ConfigError, RunAliveError, RunNotFoundError
from everstep.orchestrator.connect import RunHandle
from everstep.orchestrator.drivers import RayDriver
from everstep.orchestrator.names import NAMESPACE
from everstep.orchestrator.records import json_lines
from everstep.orchestrator.view import Phase, RunState
from ray import cloudpickle
from ray.cluster_utils import Cluster

from .harness import STEPS, WIDE, Outcome, assert_as_if_undisturbed, open_gate, plan_of, read, twins

cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.ray


@pytest.fixture(scope="module", autouse=True)
def two_raylets() -> Iterator[Cluster]:
    with raylets(3, 2) as cluster:
        yield cluster


def run(
    folder: Path,
    faults: list[Fault],
    look: Callable[[RunState], None] = lambda _: None,
    processes: int = 4,
    **options: Any,
) -> Outcome:
    plan = plan_of(folder, ranks=4, chaos=faults, **options)
    state = RayDriver().drive(plan, look)
    # From the ranks' own logs: one may die before the first look at the state.
    pids = [int(log.stem) for log in folder.glob("*.log")]
    assert len(pids) == processes
    _, alive = psutil.wait_procs([psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], timeout=5.0)
    assert not alive, "a rank outlived its run"
    assert not [entry for entry in ray.util.list_named_actors(all_namespaces=True) if entry["namespace"] == NAMESPACE]
    return read(Outcome(state, [], []), folder)


def test_one_dies_in_the_backward(undisturbed: Outcome, tmp_path: Path) -> None:
    faults = [Fault(3, 2, point=FaultPoint.IN_BACKWARD)]
    assert_as_if_undisturbed(run(tmp_path, faults), undisturbed, faults, lost=1)


def test_one_dies_in_the_transfer(undisturbed_wide: Outcome, tmp_path: Path) -> None:
    faults = [Fault(3, 1, point=FaultPoint.IN_TRANSFER)]
    assert_as_if_undisturbed(run(tmp_path, faults, width=WIDE), undisturbed_wide, faults, lost=1)


def test_a_spare_on_the_other_node_takes_the_place_of_the_dead(undisturbed: Outcome, tmp_path: Path) -> None:
    faults = [Fault(3, 2, point=FaultPoint.IN_BACKWARD)]

    def when_it_stands_by(state: RunState) -> None:
        if state.parked == 1:
            open_gate(tmp_path, 2)

    outcome = run(tmp_path, faults, when_it_stands_by, processes=5, spares=1, recovery="swap", gates=(2,))
    assert_as_if_undisturbed(outcome, undisturbed, faults, lost=0)
    (recovery,) = outcome.state.recoveries
    assert (recovery.world_before, recovery.world_after, recovery.step) == (4, 4, 3)
    assert len({member.node for member in outcome.state.members}) == 2


def test_every_rank_on_both_nodes_is_killed_and_the_run_goes_on(undisturbed: Outcome, tmp_path: Path) -> None:
    """With new ranks, from its newest checkpoint."""
    faults = [Fault(5, place, point=FaultPoint.IN_BACKWARD) for place in range(4)]
    plan = replace(plan_of(tmp_path, 4, faults, gates=(5,), checkpoint_every=2), folder=str(tmp_path))

    def when_it_is_saved(state: RunState) -> None:
        if (tmp_path / "checkpoints" / "step-00000004" / "manifest.json").exists():
            open_gate(tmp_path, 5)

    state = RayDriver().drive(plan, when_it_is_saved)
    assert len(state.faults_fired) == 4
    assert "restore from storage" in state.recoveries[0].decision
    assert state.phase is Phase.SUCCEEDED, (state.error, state.traceback)
    assert state.metrics["weights_sha256"] == undisturbed.weights


def test_a_run_is_scaled_and_a_node_is_left_while_it_trains(undisturbed: Outcome, tmp_path: Path) -> None:
    """Both are asked from outside, and neither is a failure."""
    asked: list[str] = []

    def ask() -> None:
        handle = _connected(tmp_path.name)
        _await(lambda: handle.state().step == 2)
        with pytest.raises(ConfigError, match="at least 1"):
            handle.scale(0)
        handle.scale(3)
        _await(lambda: handle.state().world == 3)
        open_gate(tmp_path, 2)
        _await(lambda: handle.state().step == 4)
        members = handle.state().members
        node = next(member.node for member in members if sum(other.node == member.node for other in members) < 3)
        with pytest.raises(ConfigError, match="is no node with a rank"):
            handle.drain("moon")
        handle.drain(node[:12])
        _await(lambda: any(member.status == "leaving" for member in handle.state().members))
        asked.append(node)
        open_gate(tmp_path, 4)
        _await(lambda: handle.state().phase.ended or node not in {member.node for member in handle.state().members})
        open_gate(tmp_path, 5)

    asking = threading.Thread(target=ask)
    asking.start()
    state = RayDriver().drive(plan_of(tmp_path, ranks=2, gates=(2, 4, 5)), lambda _: None)
    asking.join(20.0)
    outcome = read(Outcome(state, [], []), tmp_path)
    assert_as_if_undisturbed(outcome, undisturbed, [], lost=4 - int(str(state.metrics["world"])))
    assert asked
    assert asked[0] not in {member.node for member in state.members}
    assert state.recoveries == ()
    assert state.first_cause is None


def _connected(run_name: str) -> RunHandle:
    deadline = time.monotonic() + 30.0
    while True:
        try:
            return connect(run_name)
        except RunNotFoundError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def _await(condition: Callable[[], object]) -> None:
    """Poll with a deadline: the condition lies in other processes."""
    deadline = time.monotonic() + 30.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_two_die_in_the_vote(undisturbed: Outcome, tmp_path: Path) -> None:
    faults = twins([Fault(3, 2, point=FaultPoint.IN_VOTE)], other=0)
    assert_as_if_undisturbed(run(tmp_path, faults), undisturbed, faults, lost=2)


def test_one_dies_after_the_vote(undisturbed: Outcome, tmp_path: Path) -> None:
    faults = [Fault(3, 3, point=FaultPoint.AFTER_VOTE)]
    assert_as_if_undisturbed(run(tmp_path, faults), undisturbed, faults, lost=1)


def test_the_first_rank_dies_in_the_optimizer(undisturbed: Outcome, tmp_path: Path) -> None:
    faults = [Fault(3, 0, point=FaultPoint.IN_OPTIMIZER)]
    assert_as_if_undisturbed(run(tmp_path, faults), undisturbed, faults, lost=1)


def test_another_dies_while_the_group_is_rebuilt(undisturbed: Outcome, tmp_path: Path) -> None:
    faults = [Fault(3, 2, point=FaultPoint.IN_BACKWARD), Fault(3, 1, point=FaultPoint.IN_REBUILD)]
    assert_as_if_undisturbed(run(tmp_path, faults, hold=(2, 3)), undisturbed, faults, lost=2)


def test_four_three_two_one(undisturbed_wide: Outcome, tmp_path: Path) -> None:
    faults = [
        Fault(1, 1, point=FaultPoint.IN_FORWARD),
        Fault(2, 3, point=FaultPoint.IN_TRANSFER),
        Fault(4, 0, point=FaultPoint.BEFORE_VOTE),
    ]
    assert_as_if_undisturbed(run(tmp_path, faults, width=WIDE), undisturbed_wide, faults, lost=3)


def test_a_stopped_rank_is_fenced_while_its_run_answers(undisturbed: Outcome, tmp_path: Path) -> None:
    """The state is asked for from outside all the while: it names the phase, the cause and what is waited for."""
    faults = [Fault(3, 2, point=FaultPoint.IN_BACKWARD, kind=FaultKind.SIGSTOP)]
    looks: list[RunState] = []
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            try:
                looks.append(connect(tmp_path.name).state())
            except RunNotFoundError:
                time.sleep(0.05)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        outcome = run(tmp_path, faults)
    finally:
        over.set()
        asking.join(20.0)
    assert_as_if_undisturbed(outcome, undisturbed, faults, lost=1)
    assert any(look.phase is Phase.RUNNING and look.world == 4 for look in looks)
    assert "no sign of life" in outcome.state.recoveries[0].cause
    assert any(member.status == "suspect" for look in looks for member in look.members)


class Writes:
    """A callback of Ray Train's form; it lives where the controller does, so it leaves a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
        with self.path.open("a") as file:
            file.write(f"{metrics[0]['step']} {metrics[0]['loss']}\n")

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        self.path.write_text("failed")


def test_numbers_reach_callbacks_and_whoever_asks(tmp_path: Path) -> None:
    faults = [Fault(3, 0, point=FaultPoint.IN_BACKWARD)]
    plan = plan_of(tmp_path, ranks=3, chaos=faults)
    plan = replace(plan, folder=str(tmp_path / "kept"), callbacks=(Writes(tmp_path / "reports"),))
    asked: list[int] = []

    def ask(state: RunState) -> None:
        # The controller lives until its driver has heard of the end.
        if state.phase.ended:
            asked[:] = [record.step for record in connect(tmp_path.name).records(since=2)]

    state = RayDriver().drive(plan, ask)
    assert state.phase is Phase.SUCCEEDED, state.error
    assert state.faults_fired
    assert asked == list(range(2, STEPS))
    records = json_lines.read(tmp_path / "kept" / json_lines.FILE)
    assert [record.step for record in records] == list(range(STEPS))
    reports = (tmp_path / "reports").read_text().splitlines()
    assert reports == [f"{record.step} {record.loss}" for record in records]


def test_a_run_name_that_is_alive_is_refused(tmp_path: Path) -> None:
    first = plan_of(tmp_path, ranks=2)
    refused: list[BaseException] = []

    def once(state: RunState) -> None:
        if not refused:
            with pytest.raises(RunAliveError, match="is alive") as caught:
                RayDriver().drive(plan_of(tmp_path, ranks=2), lambda _: None)
            refused.append(caught.value)

    assert RayDriver().drive(first, once).phase is Phase.SUCCEEDED
    assert refused

"""A chosen few of the scenarios on real Ray with two raylets: the same weights as on the local cluster."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import ray
from everstep import connect
from everstep.conf.chaos import Fault, FaultKind, FaultPoint
from everstep.conf.errors import RunAliveError, RunNotFoundError
from everstep.orchestrator.drivers import RayDriver
from everstep.orchestrator.names import NAMESPACE
from everstep.orchestrator.view import Phase, RunState
from ray.cluster_utils import Cluster

from .harness import WIDE, Outcome, assert_as_if_undisturbed, plan_of, read, twins

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module", autouse=True)
def two_raylets() -> Iterator[Cluster]:
    os.environ["RAY_AUTH_MODE"] = "disabled"
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 3, "include_dashboard": False})
    cluster.add_node(num_cpus=2)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def run(folder: Path, faults: list[Fault], width: int = 300, hold: tuple[int, int] | None = None) -> Outcome:
    plan = plan_of(folder, ranks=4, chaos=faults, width=width, hold=hold)
    seen: list[RunState] = []
    state = RayDriver().drive(plan, seen.append)
    pids = {member.pid for look in seen for member in look.members if member.pid}
    assert len(pids) == 4
    _, alive = psutil.wait_procs([psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], timeout=5.0)
    assert not alive, "a rank outlived its run"
    assert not [entry for entry in ray.util.list_named_actors(all_namespaces=True) if entry["namespace"] == NAMESPACE]
    return read(Outcome(state, [], []), folder)


def test_one_dies_in_the_backward(undisturbed: Outcome, tmp_path: Path) -> None:
    faults = [Fault(3, 2, point=FaultPoint.IN_BACKWARD)]
    assert_as_if_undisturbed(run(tmp_path, faults), undisturbed, faults, lost=1)


def test_one_dies_in_the_transfer(undisturbed_wide: Outcome, tmp_path: Path) -> None:
    faults = [Fault(3, 1, point=FaultPoint.IN_TRANSFER)]
    assert_as_if_undisturbed(run(tmp_path, faults, WIDE), undisturbed_wide, faults, lost=1)


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
    assert_as_if_undisturbed(run(tmp_path, faults, WIDE), undisturbed_wide, faults, lost=3)


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

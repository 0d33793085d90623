"""Whole nodes on real Ray: killed, stopped and woken, drained; and the sentinel that watches them."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from everstep import connect
from everstep.actors.node.vault_messages import PREFIX
from everstep.benchmarks.raylets import raylets
from everstep.orchestrator.drivers import RayDriver
from everstep.orchestrator.names import NAMESPACE, controller_name, rank_name
from everstep.orchestrator.view import Phase, RunState
from ray import cloudpickle
from ray._raylet import GcsClient
from ray.cluster_utils import Cluster
from ray.core.generated import autoscaler_pb2

from .harness import Outcome, assert_as_if_undisturbed, open_gate, plan_of, read

cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.ray
GATE, LATER = 3, 5


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with raylets(2) as held:
        yield held


class Node:
    """A node with room for two ranks, beside the head that has room for two more."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._held = cluster.add_node(num_cpus=2)
        self.id: str = self._held.node_id
        self.raylet = psutil.Process(self._held.all_processes["raylet"][0].process.pid)

    @property
    def processes(self) -> list[psutil.Process]:
        """The raylet and all that it has started."""
        return [self.raylet, *self.raylet.children(recursive=True)]

    def remove(self) -> None:
        # A raylet that was drained may end at any moment, and its workers with it.
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in self.processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        self._cluster.remove_node(self._held, allow_graceful=False)


@pytest.fixture
def node(cluster: Cluster) -> Iterator[Node]:
    held = Node(cluster)
    yield held
    held.remove()


def home(run: str) -> str:
    """The node that the controller of a run lives on."""
    actors = ray._private.state.actors().values()
    return next(str(held["Address"]["NodeID"]) for held in actors if held["Name"] == controller_name(run))


class Happening:
    """What is done to a run while its driver looks on, one thing after the other, each when its time has come."""

    def __init__(self, folder: Path, *parts: tuple[Callable[["Happening"], object], Callable[["Happening"], object]]):
        self.folder = folder
        self._parts = list(parts)
        self.state: RunState | None = None

    def __call__(self, state: RunState) -> None:
        self.state = state
        while self._parts and self._parts[0][0](self):
            self._parts.pop(0)[1](self)

    @property
    def over(self) -> bool:
        return not self._parts

    def told(self, what: str) -> list[dict[str, Any]]:
        """Entries of the journal."""
        return [dict(entry) for entry in connect(self.folder.name).events() if entry["what"] == what]

    def pids(self, node: str) -> list[int]:
        return [entry["pid"] for entry in self.told("rank up") if entry["node"] == node]


def drive(folder: Path, happening: Happening, **options: Any) -> Outcome:
    journal: list[Any] = []

    def look(state: RunState) -> None:
        happening(state)
        if state.phase.ended:
            journal[:] = connect(folder.name).events()

    plan = plan_of(folder, ranks=4, gates=(GATE, LATER), **options)
    # It is their node that is given up, long before its ranks would be.
    timeouts = replace(plan.elastic.timeouts, heartbeat=10.0)
    state = RayDriver().drive(replace(plan, elastic=replace(plan.elastic, timeouts=timeouts)), look)
    assert happening.over, "not everything that was to be done was done"
    assert not [entry for entry in ray.util.list_named_actors(all_namespaces=True) if entry["namespace"] == NAMESPACE]
    return read(Outcome(state, journal, []), folder)


def entries(outcome: Outcome, what: str) -> list[Any]:
    return [entry for entry in outcome.journal if entry["what"] == what]


def all_wait(happening: Happening) -> bool:
    """All ranks are in the step that they are held in, and both nodes are watched."""
    state = happening.state
    assert state is not None
    waiting = [member for member in state.members if member.status == "member"]
    return state.step == GATE and len(waiting) == 4 and len(happening.told("sentinel up")) == 2


class Busy:
    """An actor in a call that gives the interpreter's lock to nobody."""

    def pid(self) -> int:
        from everstep.actors.raylet import end_with_raylet

        end_with_raylet()
        return os.getpid()

    def work(self) -> None:
        sum(range(10**12))


def test_a_killed_raylet_takes_everybody_with_it(undisturbed: Outcome, tmp_path: Path, node: Node) -> None:
    """Also a rank that is stopped, and an actor that holds the lock of its interpreter: no zombie is left."""
    actor = ray.remote(Busy).options(num_cpus=0, label_selector={"ray.io/node-id": node.id}).remote()
    busy = psutil.Process(ray.get(actor.pid.remote(), timeout=60.0))
    working = actor.work.remote()
    ended: list[psutil.Process] = []

    def kill(happening: Happening) -> None:
        assert home(tmp_path.name) == ray.get_runtime_context().get_node_id(), "a new node has taken the controller"
        victims = node.processes[1:]
        assert busy in victims
        os.kill(happening.pids(node.id)[0], signal.SIGSTOP)
        node.raylet.kill()
        ended[:], alive = psutil.wait_procs(victims, timeout=30.0)
        assert not alive
        open_gate(tmp_path, GATE)
        open_gate(tmp_path, LATER)

    outcome = drive(tmp_path, Happening(tmp_path, (all_wait, kill)))
    assert_as_if_undisturbed(outcome, undisturbed, [], lost=2)
    assert busy in ended
    (lost,) = entries(outcome, "node lost")
    assert lost["node"] == node.id
    (recovery,) = outcome.state.recoveries
    assert recovery.cause.startswith(f"node {node.id}: its sentinel and its ranks ended together")
    assert outcome.state.first_cause == recovery.cause
    del working


def test_a_node_that_stops_and_comes_back_finds_itself_shut_out(
    undisturbed: Outcome, tmp_path: Path, node: Node
) -> None:
    """Whatever its ranks wake up in: they are told so, end, and have published nothing."""
    stopped: list[psutil.Process] = []
    saved = tmp_path / "kept" / "checkpoints"

    def stop(happening: Happening) -> None:
        assert home(tmp_path.name) == ray.get_runtime_context().get_node_id(), "a new node has taken the controller"
        stopped[:] = node.processes
        for process in stopped:
            process.suspend()
        open_gate(tmp_path, GATE)

    def lost(happening: Happening) -> bool:
        assert happening.state is not None
        return happening.state.world == 2 and happening.state.phase is Phase.RUNNING

    def wake(happening: Happening) -> None:
        ranks = [psutil.Process(pid) for pid in happening.pids(node.id)]
        assert all(rank.status() == psutil.STATUS_STOPPED for rank in ranks)
        for process in stopped:
            process.resume()
        _, alive = psutil.wait_procs(ranks, timeout=30.0)
        assert not alive
        open_gate(tmp_path, LATER)

    happening = Happening(tmp_path, (all_wait, stop), (lost, wake))
    outcome = drive(tmp_path, happening, kept=True, checkpoint_every=1)
    assert_as_if_undisturbed(outcome, undisturbed, [], lost=2)
    (lost_node,) = entries(outcome, "node lost")
    assert lost_node["node"] == node.id
    assert str(lost_node["cause"]).startswith("no sign of life")
    (recovery,) = outcome.state.recoveries
    assert recovery.world_after == 2
    # Its ranks had been in the third step, and nothing is known of a later one that they have decided.
    away = {str(pid) for pid in [process.pid for process in stopped]}
    assert not [path for path in tmp_path.glob("*.log") if path.stem in away and f'["rate", {GATE}' in path.read_text()]
    assert sorted(path.name for path in saved.glob("step-*") if (path / "manifest.json").exists()) == [
        "step-00000006",
        "step-00000007",
    ]


def test_a_node_that_ray_drains_is_left_before_its_deadline(undisturbed: Outcome, tmp_path: Path, node: Node) -> None:
    """Its ranks finish their step, and it is no failure. Nor is it one that its sentinel is killed before that.

    Its vault goes when others have what it held.
    """

    def vaults() -> list[int]:
        prefix, actors = rank_name(tmp_path.name, PREFIX), ray._private.state.actors().values()
        there = [held for held in actors if held["Name"].startswith(prefix) and held["State"] == "ALIVE"]
        return [held["Pid"] for held in there if held["Address"]["NodeID"] == node.id]

    def saved(happening: Happening) -> bool:
        assert happening.state is not None
        return all_wait(happening) and "with 2 copies" in happening.state.snapshots and len(vaults()) == 1

    def kill(happening: Happening) -> None:
        (pid,) = [entry["pid"] for entry in happening.told("sentinel up") if entry["node"] == node.id]
        os.kill(pid, signal.SIGKILL)

    def replaced(happening: Happening) -> bool:
        return len(happening.told("sentinel up")) == 3

    def drain(happening: Happening) -> None:
        address = ray.get_runtime_context().gcs_address
        deadline = int(1000 * (time.time() + 60.0))
        reason = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
        accepted, why = GcsClient(address=address).drain_node(node.id, reason, "it is taken away", deadline)
        assert accepted, why

    def told(happening: Happening) -> bool:
        assert happening.state is not None
        return sum(member.status == "leaving" for member in happening.state.members) == 2

    def left(happening: Happening) -> bool:
        assert happening.state is not None
        return node.id not in {member.node for member in happening.state.members} and not vaults()

    def go_on(happening: Happening) -> None:
        ranks = [psutil.Process(pid) for pid in happening.pids(node.id) if psutil.pid_exists(pid)]
        _, alive = psutil.wait_procs(ranks, timeout=30.0)
        assert not alive
        open_gate(tmp_path, LATER)

    parts = ((saved, kill), (replaced, drain), (told, lambda _: open_gate(tmp_path, GATE)), (left, go_on))
    outcome = drive(tmp_path, Happening(tmp_path, *parts), snapshot_every=1)
    assert_as_if_undisturbed(outcome, undisturbed, [], lost=2)
    (draining,) = entries(outcome, "draining")
    assert str(draining["reason"]).startswith("Ray drains it, and ends it in ")
    assert (outcome.state.recoveries, outcome.state.first_cause) == ((), None)
    assert entries(outcome, "node lost") == []
    # Nothing was computed twice: neither in vain, nor by another rank.
    computed = [place for places in outcome.computed.values() for place in places]
    assert len(computed) == len(set(computed))

"""Faults of a soak, carried out on a Ray cluster of several raylets on this machine."""

import contextlib
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import psutil
import ray
from everstep.benchmarks.soak.plan import Kind, Stage, Strike
from everstep.benchmarks.soak.training import gate
from everstep.conf.errors import EverstepError
from everstep.orchestrator.connect import RunHandle, connect
from everstep.orchestrator.names import NAMESPACE, controller_name, prefix
from everstep.orchestrator.view import MemberView, Phase, RunState
from ray._private.node import Node
from ray.cluster_utils import Cluster

CPUS = 2
WORKERS = 2
_PATIENCE_S = 180.0
_FREED_S = 30.0
_POLL_S = 0.05


class Striker:
    """Lets a run go from stage to stage, and strikes.

    Attributes:
        struck: faults that have happened, by kind.
        seen: pids of all processes that the run was seen to have.
    """

    def __init__(self, cluster: Cluster, run: str, folder: Path, spares: int) -> None:
        self._cluster = cluster
        self._run = run
        self._folder = folder
        self._spares = spares
        self._stopped: list[int] = []
        self._drained: list[Node] = []
        self.struck: Counter[str] = Counter()
        self.seen: set[int] = set()

    def play(self, stages: Sequence[Stage], last: int, over: Callable[[], bool]) -> None:
        """All stages, each when the run stands at its step with everybody there; then the last step is let go.

        On the main thread, since only there Ray starts a node.

        Args:
            over: whether the run has ended.

        Raises:
            TimeoutError: that, or whom a fault is to hit, did not come.
        """
        self._over, started = over, time.monotonic()
        for stage in stages:
            self._await(partial(self._whole, stage.step), f"all ranks at step {stage.step}")
            self._remove_drained()
            kinds = ", ".join(strike.kind for strike in stage.strikes)
            print(f"{time.monotonic() - started:4.0f} s, step {stage.step}: {kinds}", flush=True)
            for strike in stage.strikes:
                if strike.kind.asked:
                    self._strike(strike)
            gate(self._folder, stage.step).touch()
            for strike in stage.strikes:
                if not strike.kind.asked:
                    time.sleep(strike.delay)
                    self._strike(strike)
        gate(self._folder, last).touch()

    def wake(self) -> None:
        """Wake whoever is still stopped."""
        for pid in self._stopped:
            _wake(pid)

    def pids(self) -> dict[str, int]:
        """Of the run's living actors by name."""
        actors = ray._private.state.actors().values()
        living = {held["Name"]: int(held["Pid"]) for held in actors if held["State"] == "ALIVE" and held["Name"]}
        ours = {name: pid for name, pid in living.items() if name.startswith(prefix(self._run)) and pid}
        self.seen.update(ours.values())
        return ours

    @property
    def _handle(self) -> RunHandle:
        return connect(self._run)

    def _state(self) -> RunState | None:
        try:
            return self._handle.state()
        except EverstepError:
            return None

    def _whole(self, step: int) -> bool:
        state = self._state()
        # A recovery is over with a step, which is held here.
        if state is None or state.phase not in (Phase.RUNNING, Phase.RECOVERING) or state.step < step:
            return False
        self.pids()
        # Whoever is ready may have to wait for this step to join.
        return state.world + state.parked >= state.target + self._spares

    def _strike(self, strike: Strike) -> None:
        self._await(lambda: self._try(strike), f"somebody for {strike.kind!r}")

    def _try(self, strike: Strike) -> bool:
        """Whether it has hit."""
        state = self._state()
        if state is None or state.phase.ended:
            return False
        match strike.kind:
            case Kind.KILL_RANK | Kind.STOP_RANK:
                members = [member for member in state.members if member.status == "member"]
                return self._signal(strike, [member.pid for member in members])
            case Kind.KILL_SPARE:
                return self._signal(strike, [member.pid for member in state.members if member.status == "parked"])
            case Kind.KILL_CONTROLLER | Kind.STOP_CONTROLLER:
                return self._signal(strike, self._named(controller_name(self._run)))
            case Kind.KILL_VAULT:
                return self._signal(strike, self._named(f"{prefix(self._run)}vault-"))
            case Kind.KILL_SENTINEL:
                return self._signal(strike, self._named(f"{prefix(self._run)}sentinel-"))
            case Kind.SCALE:
                return self._scale(strike, state)
            case Kind.DRAIN:
                return self._drain(strike, state.members)
            case Kind.KILL_NODE:
                return self._kill_node(strike)

    def _named(self, beginning: str) -> list[int]:
        return [pid for name, pid in sorted(self.pids().items()) if name.startswith(beginning)]

    def _signal(self, strike: Strike, pids: Sequence[int]) -> bool:
        if not pids:
            return False
        pid = pids[int(strike.pick * len(pids))]
        stops = strike.kind in (Kind.STOP_RANK, Kind.STOP_CONTROLLER)
        try:
            os.kill(pid, signal.SIGSTOP if stops else signal.SIGKILL)
        except ProcessLookupError:
            return False
        if stops:
            self._stopped.append(pid)
            threading.Timer(strike.wakes, _wake, (pid,)).start()
        self.struck[strike.kind] += 1
        return True

    def _scale(self, strike: Strike, state: RunState) -> bool:
        sizes = [size for size in (2, 3, 4) if size != state.target]
        wanted = sizes[int(strike.pick * len(sizes))]
        self._handle.scale(wanted)
        self.struck["ranks join" if wanted > state.target else "ranks leave"] += 1
        return True

    def _drain(self, strike: Strike, members: Sequence[MemberView]) -> bool:
        nodes = [node for node in self._workers() if any(member.node == node.node_id for member in members)]
        if not nodes:
            return False
        node = nodes[int(strike.pick * len(nodes))]
        self._cluster.add_node(num_cpus=CPUS)
        self._handle.drain(node.node_id)
        self.struck[strike.kind] += 1
        self._drained.append(node)
        return True

    def _remove_drained(self) -> None:
        """Whoever drains a node takes it away when nobody trains there any more."""
        state = self._state()
        held = {member.node for member in state.members} if state else None
        for node in list(self._drained):
            if held is not None and node.node_id not in held:
                self._cluster.remove_node(node)
                self._drained.remove(node)

    def _kill_node(self, strike: Strike) -> bool:
        nodes = self._workers()
        node = nodes[int(strike.pick * len(nodes))]
        raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
        for process in (raylet, *raylet.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._cluster.remove_node(node, allow_graceful=False)
        self.struck[strike.kind] += 1
        self._cluster.add_node(num_cpus=CPUS)
        return True

    def _workers(self) -> list[Node]:
        nodes = [node for node in self._cluster.worker_nodes if node not in self._drained]
        return sorted(nodes, key=lambda node: str(node.node_id))

    def _await(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what} did not come in {_PATIENCE_S:g} s: {self._state()}")
            if self._over():
                raise TimeoutError(f"{what} did not come before the run was over")
            time.sleep(_POLL_S)


def _wake(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def left_over(run: str, pids: set[int], cluster: Cluster) -> list[str]:
    """Processes, named actors and objects of a run that is over, which was the only one of its cluster."""
    _, alive = psutil.wait_procs([psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], timeout=10.0)
    deadline = time.monotonic() + _FREED_S
    # Whoever held an object is dead; Ray frees it when it has heard of that.
    while (objects := _objects(cluster)) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    named = [entry["name"] for entry in ray.util.list_named_actors(all_namespaces=True) if _of(run, entry)]
    return [*(f"process {process.pid}" for process in alive), *(f"actor {name}" for name in named), *objects]


def _of(run: str, entry: dict[str, str]) -> bool:
    return entry["namespace"] == NAMESPACE and entry["name"].startswith(prefix(run))


def _objects(cluster: Cluster) -> list[str]:
    from ray._private.internal_api import node_stats

    living = {node.node_id for node in (cluster.head_node, *cluster.worker_nodes)}
    found = []
    for node in ray.nodes():
        if node["NodeID"] in living:
            stats = node_stats(node["NodeManagerAddress"], node["NodeManagerPort"], include_memory_info=False)
            found += [f"object of node {node['NodeID'][:6]}"] * stats.store_stats.num_local_objects
    return found

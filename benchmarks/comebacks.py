"""How long until the next committed step where others come in for the dead: spares, or new ranks and a saved state."""

import argparse
import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from everstep.benchmarks import timeline
from everstep.benchmarks.common import Row, console, median_row, percentile
from everstep.benchmarks.killed_run import Blow, KilledRun, Manner, Strike, every_rank, one_rank, run_example
from everstep.benchmarks.peers.workload import RANKS
from everstep.benchmarks.raylets import raylets
from everstep.orchestrator.view import RunState
from ray.cluster_utils import Cluster

SWAP, NODE, STORAGE, VAULT = "swap", "node swap", "all dead, storage", "all dead, vault"
PER_NODE = 2
# Kills of one run; each takes one of the spares that stand by from the beginning.
SWAPS_OF_A_RUN = 5
_ALL_DEAD_OF_A_RUN = 5
_STEPS_OF_A_KILL = 4
# Enough for the spares to stand by before.
_STEPS_BEFORE = 8
# All ranks are replaced before the run goes on, so that it is the same world that commits again.
_ALL = (f"scaling.ranks=[{RANKS},{RANKS}]", "elastic.replace=true")
_SWAPS = (f"scaling.ranks=[1,{RANKS}]", "elastic.recovery=swap")
OVERRIDES: Mapping[str, tuple[str, ...]] = {
    SWAP: _SWAPS,
    NODE: _SWAPS,
    STORAGE: (*_ALL, "elastic.checkpoint_every=1", "elastic.snapshot_every=0"),
    VAULT: (*_ALL, "elastic.checkpoint_every=0", "elastic.snapshot_every=1"),
}
_SPARES = "completed by spares"
_DECIDED = {SWAP: _SPARES, NODE: _SPARES, STORAGE: "restore from storage", VAULT: "restore from vault"}


@dataclass(frozen=True)
class Comeback:
    """One kill and what followed, in seconds.

    Attributes:
        kind: what was killed, and what the state came from.
        first_sign: from the signal to the controller's first sign of it.
        decide: until a generation was opened, or new ranks were asked for.
        start: until these had started and built their model, and a generation was opened; 0 without new ranks.
        restore: until every member had its state and its group, and the next step was committed on all of them.
        total: all of this.
        beyond: how much of it nobody computed, less what the final reduction of any step takes.
        identical: whether the run ended with the weights of the undisturbed one.
    """

    kind: str
    first_sign: float
    decide: float
    start: float
    restore: float
    total: float
    beyond: float
    identical: bool

    @property
    def resume(self) -> float:
        """Without the start of processes."""
        return self.total - self.start


def comebacks_of(kind: str, run: KilledRun, identical: bool) -> list[Comeback]:
    """Read them from what the run left behind.

    Raises:
        RuntimeError: a loss was answered in another way than was to be measured.
    """
    decisions = [record["decision"] for record in run.metrics["recoveries"]]
    if sum(_DECIDED[kind] in decision for decision in decisions) < len(run.kills):
        raise RuntimeError(f"this was to be measured: {_DECIDED[kind]}; but losses were answered so: {decisions}")
    usual = statistics.median(timeline.undisturbed_reductions(run.at_the_end))
    return [_comeback(kind, run, number, usual, identical) for number in range(len(run.kills))]


def _comeback(kind: str, run: KilledRun, number: int, usual: float, identical: bool) -> Comeback:
    kill, *others = run.kills[number:]
    until = others[0].wall if others else math.inf
    later = [entry for entry in run.journal if kill.wall <= entry["time"] < until]
    sign = next(entry["time"] for entry in later if entry["what"] == "recovering")
    openings = {entry["generation"]: entry["time"] for entry in later if entry["what"] == "opened"}
    step, ranks = timeline.first_commit_in(openings, run.left(number + 1))
    end = timeline.committed(step, ranks)
    # Of several in a row only the last one led to a commit.
    opening = openings[ranks[0].generations[step]]
    asked = [entry["time"] for entry in later if entry["what"] == "rank asked for" and entry["time"] < opening]
    decided = min(asked) if asked and kind in (STORAGE, VAULT) else opening
    total = end - kill.at
    return Comeback(
        kind,
        first_sign=sign - kill.wall,
        decide=decided - sign,
        start=opening - decided,
        restore=total - (opening - kill.wall),
        total=total,
        beyond=timeline.idle((kill.at, end), ranks) - usual,
        identical=identical,
    )


def measure(options: argparse.Namespace) -> list[Comeback]:
    """Those that need one node only."""
    cluster, seed = options.cluster, options.seed
    swaps = Manner(one_rank, kills=SWAPS_OF_A_RUN, spares=SWAPS_OF_A_RUN, spent=1)
    found = _repeated(SWAP, options.swaps, seed, cluster, swaps)
    for kind in (STORAGE, VAULT):
        found += _repeated(kind, options.all_dead, seed, cluster, Manner(every_rank, kills=_ALL_DEAD_OF_A_RUN))
    return found


def measure_nodes(count: int, seed: int) -> list[Comeback]:
    """On a Ray cluster of its own, with a raylet for every two ranks; one raylet is killed with all that it started."""
    # The head has no room for ranks.
    with raylets(0, *[PER_NODE] * (1 + RANKS // PER_NODE)) as cluster:
        nodes = _Nodes(cluster)
        return _repeated(NODE, count, seed, "ray", Manner(nodes.one, spares=PER_NODE), nodes.replace)


def _repeated(
    kind: str, count: int, seed: int, cluster: str, manner: Manner, between: Callable[[], None] = lambda: None
) -> list[Comeback]:
    found: list[Comeback] = []
    if not count:
        return found
    steps = (f"config.steps={_STEPS_BEFORE + _STEPS_OF_A_KILL * manner.kills}",)
    undisturbed = run_example(f"{_name(kind)}-undisturbed", seed, cluster, overrides=steps)
    strike = Strike(timeline.step_seconds(undisturbed.survivors), random.Random(f"{kind} {seed}"), manner)
    weights = undisturbed.metrics["weights_sha256"]
    while len(found) < count:
        between()
        hit = run_example(f"{_name(kind)}-{len(found)}", seed, cluster, strike, (*OVERRIDES[kind], *steps))
        for one in comebacks_of(kind, hit, hit.metrics["weights_sha256"] == weights):
            found.append(one)
            same = "identical" if one.identical else "DIFFER"
            seconds = f"{one.total:.2f} s, without starts {one.resume:.2f} s, nobody computed {one.beyond:.2f} s"
            console().print(f"{kind} {len(found)}/{count}  {seconds}  weights {same}")
    return found


def by_kind(found: Sequence[Comeback]) -> dict[str, list[Comeback]]:
    """In the order in which they were measured."""
    return {kind: [one for one in found if one.kind == kind] for kind in dict.fromkeys(one.kind for one in found)}


def phases_of(found: Sequence[Comeback]) -> dict[str, list[float]]:
    """Seconds by phase, as people read them."""
    return {
        "kill to first sign": [one.first_sign for one in found],
        "report and decide": [one.decide for one in found],
        "start of processes": [one.start for one in found],
        "state, group, step": [one.restore for one in found],
        "kill to next commit": [one.total for one in found],
        "kill to next commit, beyond compute": [one.beyond for one in found],
        "kill to next commit, without starts": [one.resume for one in found],
    }


def rows_of(found: Sequence[Comeback], seed: int) -> list[Row]:
    """The figures."""
    rows: list[Row] = []
    for kind, ones in by_kind(found).items():
        if kind in (SWAP, NODE):
            name, taken = f"{_name(kind)}_recovery", [1000 * one.total for one in ones]
            beyond = [1000 * one.beyond for one in ones]
            rows += [
                median_row(f"{name}_ms", taken, "ms", seed),
                Row(f"{name}_p95_ms", percentile(taken, 95), "ms"),
                median_row(f"{name}_beyond_compute_ms", beyond, "ms", seed),
                Row(f"{name}_beyond_compute_p95_ms", percentile(beyond, 95), "ms"),
            ]
        else:
            end = "_vault" if kind == VAULT else ""
            rows += [
                median_row(f"all_dead_resume{end}_s", [one.resume for one in ones], "s, without starts", seed),
                median_row(
                    f"all_dead_resume_beyond_compute{end}_s", [one.beyond - one.start for one in ones], "s", seed
                ),
                median_row(f"all_dead_start{end}_s", [one.start for one in ones], "s", seed),
                median_row(f"all_dead_total{end}_s", [one.total for one in ones], "s", seed),
            ]
        rows.append(Row(f"{_name(kind)}_kills", len(ones), "kills"))
        identical = float(all(one.identical for one in ones))
        rows.append(Row(f"{_name(kind)}_identical", identical, "1: all weights as undisturbed"))
    return rows


def _name(kind: str) -> str:
    return kind.replace(", ", "_").replace(" ", "_")


class _Nodes:
    """The raylets beside the head, one of which is killed at a time, with all its processes, and replaced."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._dead: list[Any] = []

    def replace(self) -> None:
        """Another node for each that was killed; on the main thread, as Ray wants it."""
        while self._dead:
            self._cluster.remove_node(self._dead.pop(), allow_graceful=False)
            self._cluster.add_node(num_cpus=PER_NODE)

    def one(self, state: RunState, rng: random.Random) -> Blow:
        """A node with as many members as it has room for, but not that of the controller."""
        import psutil

        held = {node.node_id: node for node in self._cluster.worker_nodes}
        ranks = {
            name: [member.incarnation for member in state.members if member.node == name and member.replica is not None]
            for name in held
        }
        full = sorted(name for name, there in ranks.items() if len(there) == PER_NODE)
        if not full:
            raise RuntimeError(f"no node holds {PER_NODE} members: {ranks}")
        node = held[rng.choice(full)]
        raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
        pids = (raylet.pid, *(child.pid for child in raylet.children(recursive=True)))
        self._dead.append(node)
        return Blow(tuple(held.incarnation for held in state.members if held.node == node.node_id), pids)

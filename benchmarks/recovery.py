"""How long a run stands still after the SIGKILL of one of its four ranks, beside the peers that survive it.

Run: ``python -m everstep.benchmarks.recovery --kills 40`` (needs the extra ``peers``, or ``--skip-peers``).
"""

import random
import statistics
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from everstep.benchmarks import comebacks, timeline
from everstep.benchmarks.common import Row, console, median_row, own_ray, parser, percentile, publish
from everstep.benchmarks.killed_run import KilledRun, Strike, run_example
from everstep.benchmarks.peers import ray_train, torchft, torchrun
from everstep.benchmarks.peers.common import PeerRecovery
from everstep.benchmarks.peers.common import table as peer_table
from everstep.benchmarks.peers.workload import RANKS
from everstep.conf.run import ClusterKind
from rich.table import Table

TARGET_MS = 25
PEERS = {
    "torchrun": "torchrun_restart",
    "Ray Train": "ray_train_restart",
    "torchft (tuned)": "torchft_tuned",
    "torchft (default)": "torchft_default",
}
_PHASES = ("notice and report", "plan", "rebuild")


@dataclass(frozen=True)
class Recovery:
    """One kill and what it cost, in seconds.

    Attributes:
        first_sign: from the signal to the controller's first sign of it; the kernel frees the process's memory first.
        report: from there until every survivor had promised and reported.
        plan: until the next generation was sent out.
        rebuild: until every survivor had built its group.
        rebuild_idle: how much of that passed with no survivor inside a microbatch.
        coordination_idle: how much passed so from the signal to the end of the rebuild.
        idle: the same of all the time from the signal to the commit.
        total: from the signal to the commit of the interrupted step on the last survivor.
        reductions: what undisturbed steps took from their last microbatch to their commit, afterwards.
    """

    first_sign: float
    report: float
    plan: float
    rebuild: float
    rebuild_idle: float
    coordination_idle: float
    idle: float
    total: float
    reductions: tuple[float, ...]

    @property
    def coordination(self) -> float:
        return self.report + self.plan + self.rebuild


def recovery_of(run: KilledRun) -> Recovery:
    """Read it from what the run left behind."""
    (kill,), survivors = run.kills, run.survivors
    first_sign = next(entry["time"] for entry in run.journal if entry["what"] == "recovering") - kill.wall
    report, plan, rebuild = (sum(record["phases"][name] for record in run.metrics["recoveries"]) for name in _PHASES)
    opened = kill.at + first_sign + report + plan
    rebuilt = opened + rebuild
    end = timeline.committed(timeline.step_committed_after(kill.at, survivors), survivors)
    return Recovery(
        first_sign,
        report,
        plan,
        rebuild,
        rebuild_idle=timeline.idle((opened, rebuilt), survivors),
        coordination_idle=timeline.idle((kill.at, rebuilt), survivors),
        idle=timeline.idle((kill.at, end), survivors),
        total=end - kill.at,
        reductions=tuple(timeline.undisturbed_reductions(survivors)),
    )


def beyond_compute(recoveries: Sequence[Recovery]) -> list[float]:
    """Seconds in which nobody computed, less what the final reduction takes in any step of the smaller world."""
    usual = statistics.median(seconds for one in recoveries for seconds in one.reductions)
    return [one.idle - usual for one in recoveries]


def measure(kills: int, seed: int, cluster: str) -> tuple[list[Recovery], bool]:
    """The recoveries, and whether every run ended with the weights of the undisturbed one."""
    out = console()
    undisturbed = run_example("recovery-undisturbed", seed, cluster)
    step_s = timeline.step_seconds(undisturbed.survivors)
    rng = random.Random(seed)
    recoveries, identical = [], True
    for number in range(1, kills + 1):
        run = run_example(f"recovery-{number}", seed, cluster, Strike(step_s, rng))
        same = run.metrics["weights_sha256"] == undisturbed.metrics["weights_sha256"]
        identical = identical and same
        recoveries.append(recovery_of(run))
        seconds = recoveries[-1]
        out.print(
            f"kill {number}/{kills}  to the commit {1000 * seconds.total:.0f} ms, of which nobody computed for "
            f"{1000 * seconds.idle:.0f} ms  weights {'identical' if same else 'DIFFER'}"
        )
    return recoveries, identical


def measure_peers(kills: int, seed: int) -> list[PeerRecovery]:
    """What each peer says of itself; one that cannot be measured here is named and left out."""
    found: list[PeerRecovery] = []
    for peer in (torchrun, ray_train, torchft):
        try:
            found += peer.measure(kills, seed)
        except (ModuleNotFoundError, RuntimeError) as error:
            console().print(f"{peer.MODULE} is left out: {error}")
    return found


def phase_table(title: str, phases: Mapping[str, Sequence[float]]) -> Table:
    """Median, 95th percentile and maximum by phase, in milliseconds."""
    shown = Table("phase", "median", "p95", "max", title=f"{title}, ms", title_justify="left")
    for column in shown.columns[1:]:
        column.justify = "right"
    for name, seconds in phases.items():
        figures = (statistics.median(seconds), percentile(seconds, 95), max(seconds))
        shown.add_row(name, *(f"{1000 * figure:.1f}" for figure in figures))
    return shown


def phases_of(recoveries: Sequence[Recovery]) -> dict[str, list[float]]:
    """Seconds by phase, as people read them."""
    return {
        "kill to first sign": [one.first_sign for one in recoveries],
        "notice and report": [one.report for one in recoveries],
        "plan": [one.plan for one in recoveries],
        "rebuild": [one.rebuild for one in recoveries],
        "rebuild, nobody computing": [one.rebuild_idle for one in recoveries],
        "coordination": [one.coordination for one in recoveries],
        "kill to rebuilt": [one.first_sign + one.coordination for one in recoveries],
        "kill to rebuilt, nobody computing": [one.coordination_idle for one in recoveries],
        "final reduction of any step": [seconds for one in recoveries for seconds in one.reductions],
        "beyond compute": beyond_compute(recoveries),
        "kill to commit": [one.total for one in recoveries],
    }


def rows_of(recoveries: Sequence[Recovery], identical: bool, seed: int) -> list[Row]:
    """The figures of everstep."""
    beyond = [1000 * seconds for seconds in beyond_compute(recoveries)]
    coordination = [1000 * one.coordination for one in recoveries]
    rebuilt = [1000 * (one.first_sign + one.coordination) for one in recoveries]
    idle = [1000 * one.coordination_idle for one in recoveries]
    return [
        median_row("shrink_recovery_ms", beyond, "ms", seed),
        Row("shrink_recovery_p95_ms", percentile(beyond, 95), "ms"),
        Row("shrink_recovery_max_ms", max(beyond), "ms"),
        Row("coordination_p95_ms", percentile(coordination, 95), f"ms, target {TARGET_MS}"),
        Row("kill_to_rebuilt_p95_ms", percentile(rebuilt, 95), "ms"),
        Row("kill_to_rebuilt_idle_p95_ms", percentile(idle, 95), "ms"),
        median_row("kill_to_commit_ms", [1000 * one.total for one in recoveries], "ms", seed),
        Row("kills", len(recoveries), "runs"),
        Row("identical", float(identical), "1: all weights as undisturbed"),
    ]


def peer_rows(recoveries: Sequence[PeerRecovery], seed: int) -> list[Row]:
    """The figures of the peers, and what each loses at a kill."""
    rows = []
    for peer, name in PEERS.items():
        of_peer = [one for one in recoveries if one.name == peer]
        if of_peer:
            dropped = statistics.mean(one.microbatches_dropped for one in of_peer)
            redone = statistics.mean(one.steps_redone for one in of_peer)
            rows += [
                median_row(f"{name}_ms", [one.recovery_ms for one in of_peer], "ms", seed),
                Row(f"{name}_steps_redone", redone, "steps per kill"),
                Row(f"{name}_microbatches_dropped", dropped, "microbatches per kill"),
            ]
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    made = parser(__doc__)
    made.add_argument("--kills", type=int, default=40, help="runs of which one rank is killed (default: 40)")
    made.add_argument("--cluster", choices=list(ClusterKind), default=ClusterKind.RAY, help="of everstep's ranks")
    made.add_argument("--swaps", type=int, default=0, help="kills after which a spare takes the place")
    made.add_argument("--node-swaps", type=int, default=0, help="kills of a node with two ranks")
    made.add_argument("--all-dead", type=int, default=0, help="kills of all ranks, for each source of state")
    made.add_argument("--skip-peers", action="store_true", help="measure everstep alone")
    made.add_argument("--peer-kills", type=int, default=5, help="of each peer (default: 5)")
    options = made.parse_args(arguments)

    # Peers must not share the machine with our cluster.
    with own_ray(RANKS + comebacks.SWAPS_OF_A_RUN) if options.cluster == ClusterKind.RAY else nullcontext():
        recoveries, identical = measure(options.kills, options.seed, options.cluster) if options.kills else ([], True)
        returns = comebacks.measure(options)
    if options.node_swaps and options.cluster == ClusterKind.RAY:
        returns += comebacks.measure_nodes(options.node_swaps, options.seed)
    of_peers = [] if options.skip_peers else measure_peers(options.peer_kills, options.seed)

    if recoveries:
        console().print(phase_table(f"{len(recoveries)} kills", phases_of(recoveries)))
    for kind, found in comebacks.by_kind(returns).items():
        console().print(phase_table(f"{kind}, {len(found)} kills", comebacks.phases_of(found)))
    if of_peers:
        console().print(peer_table(of_peers))
    ours = rows_of(recoveries, identical, options.seed) if recoveries else []
    back = comebacks.rows_of(returns, options.seed)
    publish("After SIGKILL", [*ours, *back, *peer_rows(of_peers, options.seed)], options)


if __name__ == "__main__":
    main()

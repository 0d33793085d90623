"""What everstep costs while nothing fails: its steps per second against torchrun with DDP, in turns on one machine.

Run: ``python -m everstep.benchmarks.overhead`` (add ``--sweep`` for other sizes of a microbatch).
"""

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil
from everstep.benchmarks.common import Row, median_row, own_ray, parser, publish
from everstep.benchmarks.peers.kills import Jobs, jobs
from everstep.benchmarks.sides import MICROBATCHES, Course, train
from everstep.benchmarks.turns import Block, Turns
from everstep.conf.elastic import ElasticConfig, Reduction
from everstep.conf.run import ClusterKind, RunFile
from everstep.conf.scaling import Scaling
from everstep.orchestrator.trainer import ElasticTrainer

DDP = "ddp"
REDUCTIONS = (Reduction.FLOAT, Reduction.EXACT)
SIDES = (DDP, *REDUCTIONS)
USUAL_TOKENS = 512
SWEEP_TOKENS = (128, 2048)
RANKS = (2, 4)


@dataclass(frozen=True)
class Outcome:
    """One comparison.

    Attributes:
        blocks: by side, one a round; the first round, a warm-up, is left out.
        metrics: by reduction, of the finished run.
        background: CPU seconds per second of everything that is no rank, e.g. Ray's daemons and the controllers.
    """

    blocks: dict[str, list[Block]]
    metrics: dict[str, dict[str, Any]]
    background: float


def compare(ranks: int, tokens: int, options: argparse.Namespace) -> Outcome:
    """Start all sides, let them take turns, and let them finish."""
    rounds = 1 + options.pairs
    with (
        ThreadPoolExecutor(len(REDUCTIONS)) as pool,
        Turns(dict.fromkeys(SIDES, ranks)) as turns,
        _ddp_jobs() as running,
    ):
        host, port = turns.address
        course = Course(DDP, tokens, rounds * options.steps, options.steps, options.seed, host, port)
        agent = ["torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "-m"]
        running.start_module(*agent, "everstep.benchmarks.sides", json.dumps(asdict(course)))
        fits = {str(name): pool.submit(_fit, replace(course, side=name), ranks, options.cluster) for name in REDUCTIONS}
        running.wait(lambda: turns.gather_from(fits.values()), "all ranks of all sides")
        turns.ready()
        blocks: dict[str, list[Block]] = {side: [] for side in SIDES}
        cpu, clock = _background_cpu(turns.pids), time.monotonic()
        for turn in range(rounds):
            # Each side is as often the first as any other, so a drift of the machine favours none.
            for place in range(len(SIDES)):
                side = SIDES[(turn + place) % len(SIDES)]
                blocks[side].append(turns.go(side))
        background = (_background_cpu(turns.pids) - cpu) / (time.monotonic() - clock)
        metrics = {name: fit.result() for name, fit in fits.items()}
    return Outcome({side: timed[1:] for side, timed in blocks.items()}, metrics, background)


def rows_of(outcome: Outcome, suffix: str, options: argparse.Namespace) -> list[Row]:
    """Ratios of speed by reduction, the speeds, and the same by CPU time."""
    clock = {side: [1000 * block.seconds / options.steps for block in outcome.blocks[side]] for side in SIDES}
    cpu = {side: [1000 * block.cpu / options.steps for block in outcome.blocks[side]] for side in SIDES}

    def ratio(name: str, by: dict[str, list[float]]) -> list[float]:
        return [plain / ours for plain, ours in zip(by[DDP], by[name], strict=True)]

    figures = [
        *((f"{name}_vs_ddp", ratio(name, clock), "ratio") for name in REDUCTIONS),
        *((f"{name}_cpu_vs_ddp", ratio(name, cpu), "ratio") for name in REDUCTIONS),
        *((f"{side}_step", clock[side], "ms") for side in SIDES),
        *((f"{side}_cpu", cpu[side], "ms of CPU a step") for side in SIDES),
    ]
    return [median_row(f"{name}{suffix}", values, unit, options.seed) for name, values, unit in figures]


def cost_rows(outcome: Outcome, options: argparse.Namespace) -> list[Row]:
    """What does not depend on the size: messages, memory, and what runs beside the ranks."""
    sent, heard = (messages(outcome, way) for way in ("sent", "heard"))
    steps = options.steps * sum(len(block.facts) for name in REDUCTIONS for block in outcome.blocks[name])
    seconds = sum(block.seconds * len(block.facts) for name in REDUCTIONS for block in outcome.blocks[name])
    beside = sent.total() + heard.total() - sent["Heartbeat"] - heard["Ping"]
    memory = {name: outcome.metrics[name]["extra_bytes_per_parameter"] for name in REDUCTIONS}
    return [
        Row("control_messages_per_step", beside / steps, "beside heartbeats"),
        Row("heartbeats_per_s", sent["Heartbeat"] / seconds, "sent by a rank"),
        Row("pings_per_s", heard["Ping"] / seconds, "heard by a rank"),
        Row("extra_bytes_per_parameter", memory[Reduction.EXACT], "bytes"),
        Row("extra_bytes_per_parameter_float", memory[Reduction.FLOAT], "bytes"),
        Row("background_cpu", 100 * outcome.background, "% of a core"),
    ]


def messages(outcome: Outcome, way: str) -> Counter[str]:
    """Control messages by kind, over all ranks of everstep and all timed steps."""
    counted: Counter[str] = Counter()
    for name in REDUCTIONS:
        for block in outcome.blocks[name]:
            for facts in block.facts:
                counted.update(facts[way])
    return counted


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    made = parser(__doc__)
    made.add_argument("--cluster", choices=list(ClusterKind), default=ClusterKind.RAY, help="of everstep's ranks")
    made.add_argument("--pairs", type=int, default=15, help="timed turns of each side (default: 15)")
    made.add_argument("--steps", type=int, default=2, help="steps of a turn (default: 2)")
    made.add_argument("--ranks", type=int, nargs="+", default=RANKS, help="sizes of the world (default: 2 4)")
    made.add_argument("--sweep", action="store_true", help=f"also {SWEEP_TOKENS} tokens a microbatch")
    options = made.parse_args(arguments)

    rows: list[Row] = []
    cases = [(r, tokens) for r in options.ranks for tokens in (USUAL_TOKENS, *(SWEEP_TOKENS if options.sweep else ()))]
    actors = len(REDUCTIONS) * max(options.ranks)
    with own_ray(actors) if options.cluster == ClusterKind.RAY else nullcontext():
        for ranks, tokens in cases:
            outcome = compare(ranks, tokens, options)
            suffix = "" if ranks == RANKS[0] else f"_{ranks}"
            suffix += "" if tokens == USUAL_TOKENS else f"_{tokens}_tokens"
            costs = [] if rows else cost_rows(outcome, options)
            rows += [*rows_of(outcome, suffix, options), *costs]
    title = (
        f"everstep against torchrun DDP: {MICROBATCHES} microbatches of {USUAL_TOKENS} tokens, {options.pairs} pairs"
    )
    publish(title, rows, options)


@contextmanager
def _ddp_jobs() -> Iterator[Jobs]:
    with tempfile.TemporaryDirectory() as folder, jobs(Path(folder)) as running:
        yield running


def _fit(course: Course, ranks: int, cluster: str) -> dict[str, Any]:
    """everstep's side, from its start to its end."""
    run = RunFile(
        name=f"overhead-{course.side}",
        train="everstep.benchmarks.sides:train",
        config=asdict(course),
        elastic=ElasticConfig(MICROBATCHES, reduction=course.side, seed=course.seed, snapshot_every=0),
        scaling=Scaling(ranks, ranks),
        cluster=cluster,
    )
    return dict(ElasticTrainer.from_run_file(run, train).fit().metrics or {})


def _background_cpu(ranks: Sequence[int]) -> float:
    """CPU seconds so far of this process and its descendants that are no ranks."""
    this = psutil.Process()
    family = [this, *(child for child in this.children(recursive=True) if child.pid not in ranks)]
    total = 0.0
    for process in family:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


if __name__ == "__main__":
    main()

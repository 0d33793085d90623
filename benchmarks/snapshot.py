"""What it costs to save the state beside the training: steps per second with and without, in turns, and who waits.

Run: ``python -m everstep.benchmarks.snapshot``
"""

import argparse
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

from everstep.benchmarks.common import Row, median_row, parser, publish
from everstep.benchmarks.sides import MICROBATCHES, Course, train
from everstep.benchmarks.turns import Block, Turns
from everstep.conf.elastic import ElasticConfig
from everstep.conf.run import ClusterKind, RunFile
from everstep.conf.scaling import Scaling
from everstep.orchestrator.trainer import ElasticTrainer

WITH, WITHOUT = "with", "without"
TOKENS = 512


@dataclass(frozen=True)
class Outcome:
    """One comparison.

    Attributes:
        blocks: by side, one a round; the first round, a warm-up, is left out.
        metrics: of the run that saves.
        steps: that it took.
    """

    blocks: dict[str, list[Block]]
    metrics: dict[str, Any]
    steps: int


def compare(options: argparse.Namespace, folder: str) -> Outcome:
    """Two trainings that differ in nothing but that one saves take turns on this machine."""
    rounds = 1 + options.pairs
    sides = (WITH, WITHOUT)
    with ThreadPoolExecutor(2) as pool, Turns(dict.fromkeys(sides, options.ranks)) as turns:
        host, port = turns.address
        steps = rounds * options.steps
        course = Course(WITH, TOKENS, steps, options.steps, options.seed, host, port)
        every = {WITH: options.every, WITHOUT: 0}
        fits = {
            side: pool.submit(_fit, replace(course, side=side), options.ranks, every[side], folder) for side in sides
        }
        while not turns.gather_from(fits.values()):
            pass
        turns.ready()
        blocks: dict[str, list[Block]] = {side: [] for side in sides}
        for turn in range(rounds):
            for side in sides if turn % 2 else reversed(sides):
                blocks[side].append(turns.go(side))
        metrics = {side: fit.result() for side, fit in fits.items()}
    return Outcome({side: timed[1:] for side, timed in blocks.items()}, metrics[WITH], steps)


def rows_of(outcome: Outcome, options: argparse.Namespace) -> list[Row]:
    """Ratio of speed, share of waiting, and what one snapshot takes."""
    clock = {side: [1000 * block.seconds / options.steps for block in timed] for side, timed in outcome.blocks.items()}
    ratios = [plain / saving for plain, saving in zip(clock[WITHOUT], clock[WITH], strict=True)]
    step = median_row("step", clock[WITH], "ms", options.seed)
    metrics, taken = outcome.metrics, max(1.0, outcome.metrics["snapshots"])
    blocking = 1000 * (metrics["snapshot_begin_s"] + metrics["snapshot_wait_s"])
    return [
        median_row("snapshot_throughput_ratio", ratios, "ratio", options.seed),
        Row("snapshot_blocking_share", 100 * blocking / (outcome.steps * step.value), "% of training"),
        Row("snapshot_begin", 1000 * metrics["snapshot_begin_s"] / taken, "ms each"),
        Row("snapshot_wait", 1000 * metrics["snapshot_wait_s"] / taken, "ms each"),
        Row("snapshot_copy", 1000 * metrics["snapshot_copy_s"] / taken, "ms each, beside the training"),
        Row("snapshot_part", metrics["snapshot_bytes"] / taken / 2**20, "MiB of a rank"),
        Row("snapshots_per_step", taken / outcome.steps, "ratio"),
        step,
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    made = parser(__doc__)
    made.add_argument("--pairs", type=int, default=15, help="timed turns of each side (default: 15)")
    made.add_argument("--steps", type=int, default=6, help="steps of a turn (default: 6)")
    made.add_argument("--ranks", type=int, default=2, help="of each side (default: 2)")
    made.add_argument("--every", type=int, default=1, help="steps from one snapshot to the next (default: 1)")
    made.add_argument("--folder", help="where checkpoints are written (default: a temporary one)")
    options = made.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        outcome = compare(options, folder)
    title = f"saving the state every {options.every} steps, {options.ranks} ranks, {options.pairs} pairs"
    publish(title, rows_of(outcome, options), options)


def _fit(course: Course, ranks: int, every: int, folder: str) -> dict[str, Any]:
    run = RunFile(
        name=f"snapshot-{course.side}",
        train="everstep.benchmarks.sides:train",
        config=asdict(course),
        elastic=ElasticConfig(microbatches_per_step=MICROBATCHES, seed=course.seed, checkpoint_every=every),
        scaling=Scaling(ranks, ranks),
        cluster=ClusterKind.LOCAL,
        storage_path=folder,
    )
    return dict(ElasticTrainer.from_run_file(run, train).fit().metrics or {})


if __name__ == "__main__":
    main()

"""What snapshots cost: steps per second with and without, in turns, who waits for them, and how fast they are copied.

Run: ``python -m everstep.benchmarks.snapshot``
"""

import argparse
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

import everstep
import torch
from everstep.benchmarks.common import Row, median_row, parser, publish
from everstep.benchmarks.sides import MICROBATCHES, Course, train
from everstep.benchmarks.turns import Block, Turns
from everstep.conf.elastic import ElasticConfig
from everstep.conf.scaling import Scaling
from everstep.orchestrator.drivers import LocalDriver
from everstep.orchestrator.plan import RunPlan
from everstep.orchestrator.view import Phase
from ray import cloudpickle

WITH, WITHOUT = "with", "without"
TOKENS = 512
# Of the training with a large state: its steps take at least as long as those of a model of that size would.
LARGE_STEPS, LARGE_STEP_S = 24, 2.0
_GIB = 2**30


@dataclass(frozen=True)
class Outcome:
    """One comparison.

    Attributes:
        blocks: by side, one a round; the first round, a warm-up, is left out.
        metrics: of the run that saves.
        steps: that it took.
    """

    blocks: dict[str, list[Block]]
    metrics: Mapping[str, Any]
    steps: int


class Ballast:
    """State that training carries along."""

    def __init__(self, count: int, pieces: int = 32) -> None:
        self._held = {str(place): torch.zeros(count // pieces, dtype=torch.uint8) for place in range(pieces)}

    def state_dict(self) -> dict[str, torch.Tensor]:
        return self._held

    def load_state_dict(self, held: dict[str, torch.Tensor]) -> None:
        self._held = held


def train_large(ctx: everstep.RankContext) -> None:
    """A small model with a large state, and steps as long as ``seconds``."""
    import time

    from everstep.benchmarks.snapshot import Ballast, Numbers

    torch.manual_seed(0)
    model = torch.nn.Linear(512, 512)
    optimizer = torch.optim.AdamW(model.parameters())
    data = everstep.Microbatches(Numbers(), size=64)
    ballast = Ballast(ctx.config["bytes"])
    run = ctx.begin(model=model, optimizer=optimizer, data=data, extra={"ballast": ballast}, steps=ctx.config["steps"])
    for step in run:
        for batch in step:
            ends = time.monotonic() + ctx.config["seconds"]
            while time.monotonic() < ends:
                loss = model(batch).square().mean()
            step.backward(loss)
        optimizer.step()


class Numbers(torch.utils.data.Dataset[torch.Tensor]):
    """Vectors."""

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, item: int) -> torch.Tensor:
        return torch.full((512,), item / 1000)


def compare(options: argparse.Namespace) -> Outcome:
    """Two trainings that differ in nothing but that one takes snapshots take turns on this machine."""
    rounds = 1 + options.pairs
    sides = (WITH, WITHOUT)
    with ThreadPoolExecutor(2) as pool, Turns(dict.fromkeys(sides, options.ranks)) as turns:
        host, port = turns.address
        steps = rounds * options.steps
        course = Course(WITH, TOKENS, steps, options.steps, options.seed, host, port)
        every = {WITH: options.every, WITHOUT: 0}
        fits = {
            side: pool.submit(_fit, train, asdict(replace(course, side=side)), options, every[side], MICROBATCHES)
            for side in sides
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


def rows_of(outcome: Outcome, options: argparse.Namespace) -> Iterator[Row]:
    """Ratio of speed, share of waiting, and what one snapshot takes."""
    clock = {side: [1000 * block.seconds / options.steps for block in timed] for side, timed in outcome.blocks.items()}
    ratios = [plain / saving for plain, saving in zip(clock[WITHOUT], clock[WITH], strict=True)]
    step = median_row("step", clock[WITH], "ms", options.seed)
    yield median_row("snapshot_throughput_ratio", ratios, "ratio", options.seed)
    yield from _costs(outcome.metrics, outcome.steps, step.value, "")
    yield step


def large_rows(options: argparse.Namespace) -> Iterator[Row]:
    """The same shares for a rank that copies ``options.gib`` GiB in each step."""
    config = {"bytes": int(options.gib * _GIB) * options.ranks, "steps": LARGE_STEPS, "seconds": LARGE_STEP_S}
    metrics = _fit(train_large, config, options, 1, options.ranks)
    yield from _costs(metrics, LARGE_STEPS, 1000 * LARGE_STEP_S, "_1gib")
    replicated = metrics["snapshot_got_bytes"] / _GIB / max(metrics["snapshot_got_s"], 1e-9)
    yield Row("snapshot_replicate_gib_s", replicated, "GiB/s; 0: no vault got one in time")


def _costs(metrics: Mapping[str, Any], steps: int, step_ms: float, suffix: str) -> Iterator[Row]:
    taken = max(1.0, metrics["snapshots"])
    blocking = 1000 * (metrics["snapshot_begin_s"] + metrics["snapshot_wait_s"])
    longest = 1000 * metrics["snapshot_longest_block_s"]
    yield Row(f"snapshot_blocking_share{suffix}", 100 * blocking / taken / step_ms, "% of a step")
    yield Row(f"snapshot_blocking_longest{suffix}", 100 * longest / step_ms, "% of a step, the worst one")
    yield Row(f"snapshot_begin{suffix}", 1000 * metrics["snapshot_begin_s"] / taken, "ms each")
    yield Row(f"snapshot_wait{suffix}", 1000 * metrics["snapshot_wait_s"] / taken, "ms each")
    yield Row(f"snapshot_copy{suffix}", 1000 * metrics["snapshot_copy_s"] / taken, "ms each, beside the training")
    yield Row(f"snapshot_part{suffix}", metrics["snapshot_bytes"] / taken / 2**20, "MiB of a rank")
    yield Row(f"snapshots_per_step{suffix}", taken / steps, "ratio")


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    made = parser(__doc__)
    made.add_argument("--pairs", type=int, default=15, help="timed turns of each side (default: 15)")
    made.add_argument("--steps", type=int, default=6, help="steps of a turn (default: 6)")
    made.add_argument("--ranks", type=int, default=2, help="of each side (default: 2)")
    made.add_argument("--every", type=int, default=1, help="steps from one snapshot to the next (default: 1)")
    made.add_argument("--vaults", type=int, default=1, help="as many copies are made (default: 1)")
    made.add_argument(
        "--gib", type=float, default=1.0, help="that each rank copies, with a large state (default: 1; 0: none)"
    )
    options = made.parse_args(arguments)
    title = f"a snapshot every {options.every} steps, {options.ranks} ranks, {options.pairs} pairs"
    # The large one first: its memory is free again when the turns begin.
    large = list(large_rows(options)) if options.gib else []
    publish(title, [*rows_of(compare(options), options), *large], options)


def _fit(
    function: Any, config: Mapping[str, Any], options: argparse.Namespace, every: int, microbatches: int
) -> Mapping[str, Any]:
    """Train to the end; returns the metrics of the run."""
    elastic = ElasticConfig(
        microbatches_per_step=microbatches,
        seed=options.seed,
        snapshot_every=every,
        snapshot_copies=options.vaults,
        snapshot_keep=1,
    )
    scaling = Scaling(options.ranks, options.ranks)
    with tempfile.TemporaryDirectory() as folder:
        plan = RunPlan(f"snapshot-{every}", elastic, scaling, cloudpickle.dumps(function), config, folder)
        state = LocalDriver([f"node-{place}" for place in range(options.vaults)]).drive(plan, lambda _: None)
    if state.phase is not Phase.SUCCEEDED:
        raise SystemExit(f"the training has failed: {state.error}")
    return state.metrics


if __name__ == "__main__":
    main()

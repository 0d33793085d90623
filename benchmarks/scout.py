"""What watching for silent corruption and for stuck ranks costs: checked steps beside others, in one run.

Run: ``python -m everstep.benchmarks.scout``
"""

import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

import everstep
import torch
from everstep.actors.rank.progress import Board
from everstep.benchmarks.common import Row, median_row, parser, publish
from everstep.conf.elastic import ElasticConfig
from everstep.conf.run import ClusterKind, RunFile
from everstep.conf.scaling import Scaling
from everstep.examples.gpt import GPT, GPTConfig, next_token_loss
from everstep.examples.text import ByteBlocks, prepare
from everstep.monitors.progress import Activity
from everstep.orchestrator.trainer import ElasticTrainer
from torch.nn.utils import clip_grad_norm_

# Of four steps one begins with a check, and the one before it looks at how layers are called.
EVERY = 4
WARM_UP = 2 * EVERY
MICROBATCHES = 8
# What a rank writes of its progress: four times in a microbatch, some twenty times in a step.
_WRITES = 4, 20
_SAMPLES = 20_000


@dataclass(frozen=True)
class Course:
    """What is trained; ``ends`` is a file for the times at which the first rank has updated its weights, in seconds."""

    steps: int
    sequences: int
    ends: str


def train(ctx: everstep.RankContext) -> None:
    """The example GPT as its documentation writes the loop."""
    course = Course(**ctx.config)
    torch.manual_seed(0)
    model = GPT(GPTConfig())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    data = everstep.Microbatches(ByteBlocks(prepare(), GPTConfig().block), size=course.sequences)
    run = ctx.begin(model=model, optimizer=optimizer, data=data, steps=course.steps)
    ends = []
    for step in run:
        for windows in step:
            step.backward(next_token_loss(model, windows), weight=windows[:, 1:].numel())
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        ends.append(time.monotonic())
    if run.is_leader:
        Path(course.ends).write_text(json.dumps(ends))


def times_of(ends: Sequence[float]) -> tuple[list[float], list[float]]:
    """From the ends of steps to seconds: of a step without checks, and what a check adds, one of each per check.

    Args:
        ends: of steps 0, 1, 2, ..., which are checked whenever their number is a multiple of ``EVERY``.
    """
    took = {step: end - before for step, (before, end) in enumerate(pairwise(ends), 1)}
    plain, added = [], []
    for step in range(WARM_UP, len(ends) - 2, EVERY):
        others = took[step + 1] + took[step + 2]
        plain.append(others / 2)
        added.append(took[step - 1] + took[step] - others)
    return plain, added


def progress_seconds() -> float:
    """What one write of progress takes, in seconds."""
    board = Board()
    began = time.perf_counter()
    for place in range(_SAMPLES):
        board.doing(Activity.COMPUTING, place)
    took = time.perf_counter() - began
    board.close()
    return took / _SAMPLES


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    made = parser(__doc__)
    made.add_argument("--ranks", type=int, default=2, help="size of the world (default: 2)")
    made.add_argument("--checks", type=int, default=30, help="how many are timed (default: 30)")
    made.add_argument("--sequences", type=int, default=2, help="of 256 tokens in a microbatch (default: 2)")
    options = made.parse_args(arguments)

    with tempfile.TemporaryDirectory() as folder:
        course = Course(WARM_UP + EVERY * options.checks + 2, options.sequences, str(Path(folder) / "ends.json"))
        elastic = ElasticConfig(MICROBATCHES, seed=options.seed, snapshot_every=0, check_every=EVERY)
        run = RunFile(
            name="scout",
            train="everstep.benchmarks.scout:train",
            config=asdict(course),
            elastic=elastic,
            scaling=Scaling(options.ranks, options.ranks),
            cluster=ClusterKind.LOCAL,
        )
        ElasticTrainer.from_run_file(run, train).fit()
        plain, added = times_of(json.loads(Path(course.ends).read_text()))
    every = ElasticConfig(MICROBATCHES).check_every
    step = median(plain)
    owed = -(-MICROBATCHES // options.ranks)
    writes = progress_seconds() * (_WRITES[0] * owed + _WRITES[1])
    shares = [100 * (check / every + writes) / step for check in added]
    rows = [
        median_row("scout_cost_share", shares, "% of a step", options.seed),
        median_row("scout_check", [1000 * check for check in added], "ms", options.seed),
        median_row("scout_step", [1000 * one for one in plain], "ms", options.seed),
        Row("scout_progress", 1e6 * writes, "us a step"),
        Row("scout_check_every", every, "steps"),
    ]
    title = f"checks of a GPT of 3.3 million parameters on {options.ranks} ranks, {owed} microbatches each a step"
    publish(title, rows, options)


if __name__ == "__main__":
    main()

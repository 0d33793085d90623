"""What the user's loop costs: waiting for data, coming back late in a run, and lines of code.

Run: ``python -m everstep.benchmarks.loop``
"""

import ast
import difflib
import io
import json
import tempfile
import time
import tokenize
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import everstep
import numpy as np
from everstep.actors.rank.data import Loader, Microbatches
from everstep.actors.rank.order import SampleOrder
from everstep.benchmarks.common import Row, median_row, parser, publish
from everstep.conf.run import load
from everstep.examples import gpt_bytes
from everstep.examples.text import ByteBlocks, prepare
from everstep.orchestrator.trainer import ElasticTrainer
from everstep.policies.workload import Balanced

EXAMPLES = Path(everstep.__file__).parent / "examples"
RANKS = 2
LATE = 10**6
# The first steps start workers and warm caches.
WARM_UP = 5


@dataclass
class Waits:
    """When a rank's training thread waited for data.

    Attributes:
        began: when each step asked for its first batch.
        waited: seconds in ``Loader.load`` in each step.
    """

    began: dict[int, float] = field(default_factory=dict)
    waited: Counter[int] = field(default_factory=Counter)

    def watch(self) -> None:
        """Time every ``Loader.load`` of this process."""
        plain = Loader.load

        def timed(loader: Loader, step: int, index: int, upcoming: Sequence[tuple[int, int]] = ()) -> Any:
            started = time.perf_counter()
            self.began.setdefault(step, started)
            try:
                return plain(loader, step, index, upcoming)
            finally:
                self.waited[step] += time.perf_counter() - started  # type: ignore[assignment]

        Loader.load = timed  # type: ignore[method-assign, assignment]

    def shares(self) -> list[float]:
        """By step after the warm-up: the part of it that was spent waiting; the last step has no end and no share."""
        steps = sorted(self.began)[WARM_UP:]
        return [self.waited[step] / (self.began[step + 1] - self.began[step]) for step in steps[:-1]]


def timed_example(ctx: everstep.RankContext) -> None:
    """The example's own training function, watched."""
    waits = Waits()
    waits.watch()
    everstep.Microbatches = partial(Microbatches, workers=ctx.config["workers"])  # type: ignore[misc, assignment]
    gpt_bytes.train(ctx)
    Path(ctx.config["folder"], f"{ctx.replica}.json").write_text(json.dumps(waits.shares()))


def shares_of_example(workers: int, steps: int, seed: int) -> list[float]:
    """Shares of step time that two ranks of the local cluster wait for data, over all ranks and steps."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "name": "loop",
            "cluster": "local",
            "storage_path": folder,
            "compare": "false",
            "scaling.ranks": f"[{RANKS},{RANKS}]",
            "elastic.chaos": "[]",
            "elastic.seed": seed,
            "config.steps": steps,
            "config.folder": folder,
            "config.workers": workers,
        }
        run = load(EXAMPLES / "gpt_bytes.yaml", [f"{key}={value}" for key, value in settings.items()])
        ElasticTrainer.from_run_file(run, timed_example).fit()
        said = [json.loads(path.read_text()) for path in Path(folder).glob("?.json")]
    if len(said) != RANKS:
        raise RuntimeError(f"{len(said)} of {RANKS} ranks said how long they waited")
    return [share for shares in said for share in shares]


class Counted:
    """Counts the samples that are read of a data set."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self.reads = 0

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, sample: int) -> Any:
        self.reads += 1
        return self._dataset[sample]


@dataclass(frozen=True)
class Resumed:
    """What a rank read that begins late in a run.

    Attributes:
        reads: samples, up to the end of its first step.
        owed: samples that this step owes.
        order_us: microseconds to find out which ones.
    """

    reads: int
    owed: int
    order_us: float


def resume(dataset: Any, microbatches: int, size: int, ranks: int, seed: int) -> list[Resumed]:
    """Each rank of a world that begins at step 10^6."""
    plan = Balanced().plan(range(ranks), microbatches).indices
    found = []
    for indices in plan.values():
        counted = Counted(dataset)
        loader = Loader(Microbatches(counted, size), microbatches, seed)
        began = time.perf_counter()
        for index in indices:
            loader.order.samples(LATE, index)
        seconds = time.perf_counter() - began
        for index in indices:
            loader.load(LATE, index)
        found.append(Resumed(counted.reads, size * len(indices), 1e6 * seconds))
    return found


def order_us(seed: int, times: int = 2000) -> list[float]:
    """Microseconds to find the 16 samples of one microbatch of a late step, in a data set of 10^9."""
    order = SampleOrder(10**9, 16, 64, seed, shuffle=True)
    taken = []
    for number in range(times):
        began = time.perf_counter()
        order.samples(LATE + number * 977, number % 64)
        taken.append(1e6 * (time.perf_counter() - began))
    return taken


def lines_added(plain: str, elastic: str) -> int:
    """Lines of code of the elastic script that the plain one does not have, in the order of the scripts.

    Blank lines, comments and docstrings are no code. A changed line counts, also if only its indent changed.
    """
    return sum(line.startswith("+ ") for line in difflib.ndiff(code_lines(plain), code_lines(elastic)))


def code_lines(script: str) -> list[str]:
    """The lines of a script that hold code, without comments and what follows them."""
    hidden = {
        line
        for node in ast.walk(ast.parse(script))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and ast.get_docstring(node, clean=False) is not None
        for line in range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)
    }
    lines = script.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(script).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    return [line.rstrip() for number, line in enumerate(lines, 1) if line.strip() and number not in hidden]


def data_rows(shares: Mapping[int, Sequence[float]], seed: int) -> list[Row]:
    """The example's default first, which is no worker; means, so that a single long wait shows."""
    default = Microbatches([0], 1).workers
    rows = [Row("data_cost_share", float(np.mean(shares[default])), "of a step")]
    for workers, seen in shares.items():
        rows += [
            Row(f"data_cost_share_{workers}_workers", float(np.mean(seen)), "of a step"),
            median_row(f"data_cost_share_{workers}_workers_median", seen, "of a step", seed),
        ]
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    made = parser(__doc__)
    made.add_argument("--steps", type=int, default=40, help="steps of each training (default: 40)")
    options = made.parse_args(arguments)

    shares = {workers: shares_of_example(workers, options.steps, options.seed) for workers in (0, 2)}
    resumed = resume(ByteBlocks(prepare(), 256), microbatches=8, size=2, ranks=RANKS, seed=options.seed)
    scripts = [(EXAMPLES / f"{name}_loop.py").read_text(encoding="utf-8") for name in ("plain", "elastic")]
    rows = [
        *data_rows(shares, options.seed),
        Row("resume_reads_per_rank", max(rank.reads for rank in resumed), "samples"),
        Row("resume_samples_owed_per_rank", max(rank.owed for rank in resumed), "samples"),
        Row("resume_order_us_per_rank", max(rank.order_us for rank in resumed), "µs"),
        median_row("order_us", order_us(options.seed), "µs", options.seed),
        Row("lines_added_to_plain_loop", lines_added(*scripts), "lines"),
    ]
    publish(f"The loop: the example GPT on {RANKS} ranks of this machine", rows, options)
    wrong = [asdict(rank) for rank in resumed if rank.reads != rank.owed]
    if wrong:
        raise SystemExit(f"a rank that began at step {LATE} read something else than its quota: {wrong}")


if __name__ == "__main__":
    main()

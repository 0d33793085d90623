"""A healthy run on a machine whose cores are all taken by others: who is held for dead, and how much is trained?

Run: ``python -m everstep.benchmarks.loaded`` (default deadlines, two raylets, four ranks).
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from everstep.benchmarks.common import Row, parser, publish
from everstep.benchmarks.raylets import raylets
from everstep.conf.elastic import ElasticConfig
from everstep.conf.scaling import Scaling
from everstep.orchestrator.connect import connect
from everstep.orchestrator.drivers import RayDriver
from everstep.orchestrator.plan import RunPlan
from everstep.orchestrator.view import RunState
from ray import cloudpickle

RUN, RANKS = "loaded", 4
# Each of them would take a whole core.
HOGS_PER_CORE = 2
_HOG = "while True: pass"


def train(ctx: Any) -> None:
    """A small model without end."""
    import everstep
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    data = everstep.Microbatches(torch.randn(64, 64, generator=torch.Generator().manual_seed(0)), size=4)
    for step in ctx.begin(model=model, optimizer=optimizer, data=data, steps=10**6):
        for batch in step:
            step.backward(model(batch).mean())
        optimizer.step()


class Load:
    """Looks on as a driver does: takes all cores for a while once the run trains and has a snapshot, then ends it."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._hogs: list[subprocess.Popen[bytes]] = []
        self._began: tuple[float, int] | None = None
        self.steps = 0
        self.last: RunState | None = None

    def __call__(self, state: RunState) -> None:
        self.last = state
        if self._began is None:
            if state.step > 3 and state.snapshots.startswith("step"):
                self._began = time.monotonic(), state.step
                count = HOGS_PER_CORE * (os.cpu_count() or 1)
                self._hogs = [subprocess.Popen([sys.executable, "-c", _HOG]) for _ in range(count)]
        elif self._hogs and time.monotonic() - self._began[0] > self._seconds:
            self.steps = state.step - self._began[1]
            self.end()
            connect(RUN).stop()

    def end(self) -> None:
        """Give the cores back."""
        for hog in self._hogs:
            hog.kill()
            hog.wait()
        self._hogs = []


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    made = parser(__doc__)
    made.add_argument("--seconds", type=float, default=60.0, help="of load (default: 60)")
    options = made.parse_args(arguments)
    load = Load(options.seconds)
    elastic = ElasticConfig(microbatches_per_step=8, snapshot_every=4, seed=options.seed)
    plan = RunPlan(RUN, elastic, Scaling(RANKS, RANKS), cloudpickle.dumps(train))
    with raylets(RANKS // 2, RANKS // 2):
        try:
            RayDriver().drive(plan, load)
        finally:
            load.end()
    assert load.last is not None
    lost = sum(len(recovery.lost) for recovery in load.last.recoveries)
    rows = [
        Row("loaded_steps", load.steps, f"steps in {options.seconds:g} s"),
        Row("loaded_recoveries", len(load.last.recoveries), "recoveries"),
        Row("loaded_false_deaths", lost, "ranks"),
    ]
    publish(f"{HOGS_PER_CORE} busy processes a core beside {RANKS} ranks", rows, options)
    if lost or not load.steps:
        raise SystemExit(f"first cause: {load.last.first_cause}")


if __name__ == "__main__":
    main()

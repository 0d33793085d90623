"""A run that is hit again and again, and ends with the bits of one that was left alone.

Run: ``python -m everstep.benchmarks.soak`` (``--faults`` says how often, ``--seed`` what).
"""

import tempfile
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from everstep.benchmarks.common import Row, parser, publish
from everstep.benchmarks.raylets import raylets
from everstep.benchmarks.soak import strikes
from everstep.benchmarks.soak.plan import STEPS_BETWEEN, Stage, draw
from everstep.benchmarks.soak.training import MICROBATCHES, Left, read, train
from everstep.conf.elastic import ElasticConfig, Timeouts
from everstep.conf.scaling import Scaling
from everstep.orchestrator.drivers import Driver, LocalDriver, OnState, RayDriver
from everstep.orchestrator.plan import RunPlan
from everstep.orchestrator.view import Phase, RunState
from ray import cloudpickle

RANKS = 3
SPARES = 1


@dataclass(frozen=True)
class Soaked:
    """What came of a soak.

    Attributes:
        struck: faults that happened, by kind.
        differences: in what it differs from the undisturbed run.
        leftovers: of the run, after its end.
    """

    struck: Counter[str]
    differences: list[str]
    leftovers: list[str]
    state: RunState


def soak(seed: int, faults: int) -> Soaked:
    """Train undisturbed, and once more through faults that are drawn from the seed.

    Raises:
        RuntimeError: one of the runs failed.
        TimeoutError: the run did not come to where the next fault was to hit.
    """
    stages = draw(seed, faults)
    steps = _last(stages) + 1
    with tempfile.TemporaryDirectory() as name:
        alone, hit = Path(name, "undisturbed"), Path(name, "soak")
        undisturbed, _ = _train(_plan(alone, steps, (), seed), LocalDriver())
        # The head has room for two ranks as well.
        with raylets(*[strikes.CPUS] * (1 + strikes.WORKERS)) as cluster:
            striker = strikes.Striker(cluster, "soak", hit, SPARES)
            left, state = _train(_plan(hit, steps, stages, seed), _Struck(striker, stages))
            leftovers = strikes.left_over("soak", striker.seen | set(left.pids), cluster)
    return Soaked(striker.struck, left.differences(undisturbed), leftovers, state)


def rows_of(soaked: Soaked) -> list[Row]:
    """The figures."""
    return [
        Row("soak_faults", soaked.struck.total(), "faults"),
        *(Row(f"soak_{kind.replace(' ', '_')}", count, "times") for kind, count in sorted(soaked.struck.items())),
        Row("soak_recoveries", len(soaked.state.recoveries), "recoveries"),
        Row("soak_identical", float(not soaked.differences), "1 for yes"),
        Row("soak_leftovers", len(soaked.leftovers), "processes, actors and objects"),
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    made = parser(__doc__)
    made.add_argument("--faults", type=int, default=100, help="how many (default: 100, in about ten minutes)")
    options = made.parse_args(arguments)
    soaked = soak(options.seed, options.faults)
    publish(f"a soak of {options.faults} faults, seed {options.seed}", rows_of(soaked), options)
    for what in (*(f"differs in {what}" for what in soaked.differences), *(f"left: {it}" for it in soaked.leftovers)):
        print(what)
    if soaked.differences or soaked.leftovers:
        raise SystemExit(1)


class _Struck:
    """A driver whose run is struck while it drives."""

    def __init__(self, striker: strikes.Striker, stages: Sequence[Stage]) -> None:
        self._striker = striker
        self._stages = stages
        self._missed = threading.Event()

    def drive(self, plan: RunPlan, on_state: OnState) -> RunState:
        with ThreadPoolExecutor(1) as pool:
            driving = pool.submit(RayDriver().drive, plan, self._look)
            try:
                self._striker.play(self._stages, _last(self._stages), driving.done)
            except BaseException:
                self._missed.set()
                # If the run failed, that is what is to be told.
                if not driving.done():
                    raise
            try:
                return driving.result()
            finally:
                self._striker.wake()

    def _look(self, state: RunState) -> None:
        if self._missed.is_set():
            raise RuntimeError("what the run waits for will not come")


def _last(stages: Sequence[Stage]) -> int:
    """The step that begins when all faults have happened."""
    return stages[-1].step + STEPS_BETWEEN


def _plan(folder: Path, steps: int, stages: Sequence[Stage], seed: int) -> RunPlan:
    folder.mkdir()
    return RunPlan(
        run=folder.name,
        elastic=ElasticConfig(
            microbatches_per_step=MICROBATCHES,
            spares=SPARES if stages else 0,
            checkpoint_every=10,
            snapshot_every=2 if stages else 0,
            seed=seed,
            timeouts=Timeouts(heartbeat=3.0, adopt=4.0, collective=30.0, recovery=60.0),
        ),
        scaling=Scaling(1, RANKS),
        train=cloudpickle.dumps(train),
        config={
            "steps": steps,
            "gates": [*(stage.step for stage in stages), steps - 1] if stages else [],
            "folder": str(folder),
        },
        folder=str(folder),
    )


def _train(plan: RunPlan, driver: Driver) -> tuple[Left, RunState]:
    state = driver.drive(plan, lambda state: None)
    if state.phase is not Phase.SUCCEEDED:
        raise RuntimeError(f"the run {plan.run!r} failed: {state.error}\n{state.traceback or ''}")
    return read(Path(str(plan.folder)), str(state.metrics["weights_sha256"])), state


if __name__ == "__main__":
    main()

"""One launch: the training, its gates, and what came of each of its cases."""

import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everstep.benchmarks.localisation import training
from everstep.benchmarks.localisation.judge import Outcome, judged
from everstep.benchmarks.localisation.plan import RANKS, Family, Kind, Launch
from everstep.conf.elastic import ElasticConfig, Timeouts
from everstep.conf.scaling import Scaling
from everstep.orchestrator.drivers import Driver
from everstep.orchestrator.plan import RunPlan
from everstep.orchestrator.view import Phase, RunState
from ray import cloudpickle


@dataclass(frozen=True)
class Pace:
    """How soon it is noticed that somebody is silent, or stands still.

    Attributes:
        hang: as ``elastic.hang``, in seconds.
    """

    hang: float
    timeouts: Timeouts

    @property
    def limits(self) -> dict[Kind, float]:
        """By kind of hang, after how many seconds it may be called one."""
        silent = {Kind.STOPPED: self.timeouts.heartbeat}
        return {**silent, Kind.LOCK: self.hang, Kind.LOADER: 4 * self.hang, Kind.COLLECTIVE: self.hang}


def _timeouts(**seconds: float) -> Timeouts:
    """Short, so that much happens in little time."""
    return Timeouts(heartbeat_interval=0.1, confirm=1.0, collective=20.0, recovery=60.0, adopt=4.0, **seconds)


def pace_of(family: Family, cluster: str) -> Pace:
    """Hangs are to be noticed soon; where something else is in question a busy machine must not look like one.

    Processes of Ray take a core for themselves when they start, so that others are silent for longer.
    """
    if cluster == "ray":
        return Pace(3.0, _timeouts(heartbeat=4.0, probe=1.0, node=3.0))
    if family is Family.HANG:
        return Pace(1.0, _timeouts(heartbeat=1.5, probe=0.5))
    return Pace(3.0, _timeouts(heartbeat=4.0, probe=1.0))


# So long, in seconds, a verdict may be on its way after all have come to the next gate.
_VERDICT_S = 0.4


def play(launch: Launch, driver: Driver, cluster: str) -> list[Outcome]:
    """Train, and say of each case who was hit, who was named, and when.

    Raises:
        RuntimeError: the training did not come to its end.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        gates = Gates(folder, launch)
        state = driver.drive(plan_of(launch, folder, pace_of(launch.family, cluster)), gates.look)
        if state.phase is not Phase.SUCCEEDED:
            raise RuntimeError(f"launch {launch.name} has failed: {state.error}\n{state.traceback or ''}")
        hits = [_read(training.fired(folder, place)) for place in range(len(launch.cases))]
        return judged(launch, hits, journal(folder), gates.opened, pace_of(launch.family, cluster).limits, cluster)


def plan_of(launch: Launch, folder: Path, pace: Pace) -> RunPlan:
    """What is asked of everstep."""
    numeric = launch.family in (Family.NUMERIC, Family.HEALTHY)
    elastic = ElasticConfig(
        microbatches_per_step=training.MICROBATCHES,
        hang=pace.hang,
        check_every=launch.interval if numeric else 0,
        on_corruption="observe",
        snapshot_every=0,
        timeouts=pace.timeouts,
    )
    return RunPlan(
        run=f"localisation-{launch.name}",
        elastic=elastic,
        scaling=Scaling(1, RANKS),
        train=cloudpickle.dumps(training.train),
        config={"folder": str(folder), "launch": launch},
        folder=str(folder / "run"),
    )


class Gates:
    """Lets the training go on when everybody is there, and what was to be said of the last case is said.

    Attributes:
        opened: by gate, when, in seconds since the epoch.
    """

    def __init__(self, folder: Path, launch: Launch) -> None:
        self._folder = folder
        self._launch = launch
        self._here = 0.0
        self.opened: list[float] = []

    def look(self, state: RunState) -> None:
        """A look at the run, whenever there is one."""
        place, gates = len(self.opened), self._launch.gates
        if self._launch.family is Family.STRAGGLER and place and _slow_since(state, self.opened[-1]):
            training.over(self._folder, place - 1).touch()
        if place == len(gates) or state.phase is not Phase.RUNNING:
            return
        members = [member for member in state.members if member.status == "member"]
        if len(members) < RANKS or any(member.step < gates[place] for member in members):
            self._here = 0.0
            return
        now = time.time()
        self._here = self._here or now
        if self._launch.family is Family.NUMERIC and place and now - self._here < _VERDICT_S:
            return
        self._here = 0.0
        self.opened.append(now)
        training.gate(self._folder, place).touch()


def _slow_since(state: RunState, since: float) -> bool:
    return any(verdict.kind == "straggler" and verdict.who and verdict.at > since for verdict in state.verdicts)


def journal(folder: Path) -> Sequence[Mapping[str, Any]]:
    """What the run has noted, all of its lives together."""
    files = sorted((folder / "run" / "journal").glob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def _read(file: Path) -> Mapping[str, Any] | None:
    return json.loads(file.read_text()) if file.exists() else None

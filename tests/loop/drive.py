"""A training function on ranks that are killed, beside the same function in one plain process."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everstep.conf.chaos import Fault
from everstep.conf.elastic import ElasticConfig, Timeouts
from everstep.conf.scaling import Scaling
from everstep.orchestrator.cluster import Program
from everstep.orchestrator.controller import Controller
from everstep.orchestrator.journal import Journal
from everstep.orchestrator.local_cluster import LocalCluster
from everstep.orchestrator.plan import RunPlan
from everstep.orchestrator.view import Phase, RunState
from everstep.policies.world import Seat
from ray import cloudpickle

from .notes import merged, read
from .reference import Train, plain_run

SEED = 11
END = '["end"]'
DEADLINE_S = 60.0
QUICK = Timeouts(heartbeat_interval=0.2, heartbeat=1.5, probe=0.7, confirm=1.0, collective=20.0, recovery=30.0)


@dataclass
class Outcome:
    """What a run left behind.

    Attributes:
        by_process: what its ranks wrote, by key.
        leftovers: processes that outlived the run.
        journal: what its controller wrote down.
    """

    state: RunState
    by_process: list[dict[str, Any]]
    leftovers: list[str]
    journal: list[Mapping[str, object]]

    @property
    def notes(self) -> dict[str, Any]:
        """What all ranks wrote, by key."""
        return merged(line for notes in self.by_process for line in notes.items())

    @property
    def dead(self) -> list[dict[str, Any]]:
        """What those wrote that did not come to their end."""
        return [notes for notes in self.by_process if END not in notes]


class SparesFirst(LocalCluster):
    """Whoever has a place is started when all spares stand by, so that they are there whenever somebody dies."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._later: list[tuple[Any, ...]] | None = []

    def start(self, incarnation: str, seat: Seat | None, *where: Any) -> None:
        if seat is None or self._later is None:
            super().start(incarnation, seat, *where)
        else:
            self._later.append((incarnation, seat, *where))

    async def begin(self, controller: Controller, spares: int) -> None:
        while controller.state().parked < spares:
            await asyncio.sleep(0.005)
        later, self._later = self._later or [], None
        for asked in later:
            super().start(*asked)


def launch(
    train: Train,
    folder: Path,
    ranks: int = 3,
    faults: Sequence[Fault] = (),
    config: Mapping[str, Any] | None = None,
    microbatches: Any = 6,
    **elastic: Any,
) -> Outcome:
    """Train on the local cluster to the end, whatever the end is."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"timeouts": QUICK, "seed": SEED, "replace": False, "snapshot_every": 0, **elastic}
    plan = RunPlan(
        run=folder.name,
        elastic=ElasticConfig(microbatches_per_step=microbatches, chaos=tuple(faults), **settings),
        scaling=Scaling(1, ranks),
        train=cloudpickle.dumps(train),
        config={"notes": str(folder), **(config or {})},
    )

    async def until_over() -> Outcome:
        cluster = SparesFirst(plan.program())
        controller = Controller(plan.settings(term=1), cluster, Journal())
        beginning = asyncio.create_task(cluster.begin(controller, plan.elastic.spares))
        state = await asyncio.wait_for(controller.run(), DEADLINE_S)
        beginning.cancel()
        return Outcome(state, read(folder), controller.leftovers, controller.events())

    return asyncio.run(until_over())


def reference(
    train: Train, folder: Path, config: Mapping[str, Any] | None = None, microbatches: Any = 6
) -> dict[str, Any]:
    """The notes of the same function in this process."""
    folder.mkdir(parents=True, exist_ok=True)
    plain_run(train, {"notes": str(folder), **(config or {})}, microbatches, SEED)
    (notes,) = read(folder)
    assert END in notes
    return notes


def assert_as_reference(
    train: Train,
    folder: Path,
    faults: Sequence[Fault],
    ranks: int = 3,
    config: Mapping[str, Any] | None = None,
    microbatches: Any = 6,
    plain: Mapping[str, Any] | None = None,
    lost: int | None = None,
    **elastic: Any,
) -> Outcome:
    """Train through the faults; every fault must fire, and everything noted must be the reference's to the bit.

    Args:
        plain: what ``config`` holds for the reference beside the rest.
        lost: ranks that do not come to their end; by default one for each fault.
    """
    expected = reference(train, folder / "plain", {**(config or {}), **(plain or {})}, microbatches)
    outcome = launch(train, folder / "ranks", ranks, faults, config, microbatches, **elastic)
    assert_same(outcome, expected)
    assert_fired(outcome, faults)
    gone = len(faults) if lost is None else lost
    assert len(outcome.by_process) - len(outcome.dead) == outcome.state.metrics["world"] == ranks - gone
    return outcome


def assert_fired(outcome: Outcome, faults: Sequence[Fault]) -> None:
    """Each planned fault, where it was planned, and nothing else."""
    assert len(outcome.state.faults_fired) == len(faults), outcome.state.faults_fired
    for fault in faults:
        assert any(str(fault) in fired for fired in outcome.state.faults_fired), outcome.state.faults_fired


def assert_same(outcome: Outcome, expected: Mapping[str, Any]) -> None:
    """The run has ended well, and every fact that it noted is the expected one."""
    assert outcome.state.phase is Phase.SUCCEEDED, (outcome.state.error, outcome.state.traceback)
    assert outcome.leftovers == []
    notes = outcome.notes
    for key in sorted(expected):
        assert notes.get(key) == expected[key], key
    assert set(notes) == set(expected)


def refused(train: Train, folder: Path, ranks: int = 2, **options: Any) -> str:
    """The one line with which a run ends that cannot be trained; no process is left."""
    outcome = launch(train, folder, ranks, **options)
    assert outcome.state.phase is Phase.FAILED, "nobody refused it"
    assert outcome.leftovers == []
    assert outcome.state.error is not None
    assert "\n" not in outcome.state.error
    return outcome.state.error

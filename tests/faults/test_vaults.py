"""Snapshots in memory: everybody may die, and the run goes on from what vaults hold, with the same weights."""

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
from everstep.conf.chaos import Fault, FaultPoint
from everstep.orchestrator import journal
from everstep.orchestrator.controller import Controller
from everstep.orchestrator.local_cluster import LocalCluster
from everstep.orchestrator.view import Phase

from .controllers import Lives
from .harness import During, Outcome, drive, open_gate, plan_of, until

RANKS, GATE = 3, 4
NODES = ("a", "b", "c")
# All ranks die in the step that the gate holds, at once.
ALL = [Fault(GATE, place, point=FaultPoint.IN_BACKWARD) for place in range(RANKS)]


def trained(
    folder: Path,
    chaos: Sequence[Fault] = (),
    during: During | None = None,
    nodes: Sequence[str] = NODES,
    stored: bool = False,
    **options: Any,
) -> Outcome:
    """Train to the end on several nodes, with a snapshot after each step."""
    given = {"snapshot_every": 1, "gates": (GATE,), **options}
    plan = plan_of(folder, RANKS, chaos, **given)
    if stored:
        plan = replace(plan, folder=str(folder / "stored"))
    return drive(plan, LocalCluster(plan.program(), nodes=nodes), folder, during)


def newest(controller: Controller) -> int:
    """Step of the newest snapshot that is whole."""
    return controller._state.saved.get("vault", 0)


def vaults(controller: Controller) -> dict[str, int]:
    """Process ids of all vaults."""
    assert isinstance(controller._cluster, LocalCluster)
    held = controller._cluster._processes.items()
    return {name: process.pid or 0 for name, process in held if name.startswith("vault") and process.is_alive()}


def copies(controller: Controller) -> int:
    """Of that part of the newest snapshot of which there are least."""
    assert controller._vaults is not None
    return controller._vaults._copies.holdings.fewest


def assert_succeeded(outcome: Outcome, undisturbed: Outcome) -> None:
    assert outcome.state.phase is Phase.SUCCEEDED, (outcome.state.error, outcome.state.traceback)
    assert outcome.leftovers == []
    assert outcome.weights == undisturbed.weights
    assert outcome.rates == undisturbed.rates
    assert outcome.state.metrics["state_sha256"] == undisturbed.state.metrics["state_sha256"]


async def when_it_is_saved(controller: Controller, folder: Path) -> None:
    await until(lambda: newest(controller) and copies(controller) == 2)
    open_gate(folder, GATE)


def test_every_rank_is_killed_at_once(undisturbed: Outcome, tmp_path: Path) -> None:
    seen: list[str] = []

    async def during(controller: Controller) -> None:
        await when_it_is_saved(controller, tmp_path)
        seen.append(controller.state().snapshots)

    outcome = trained(tmp_path, ALL, during)
    assert len(outcome.state.faults_fired) == RANKS
    assert_succeeded(outcome, undisturbed)
    (recovery,) = outcome.state.recoveries
    assert "restore from vault" in recovery.decision
    assert "in common to 3 ranks, in 3 parts with 2 copies" in seen[0]
    assert "they need" in seen[0]


def test_every_rank_and_all_vaults_but_one_copy(undisturbed: Outcome, tmp_path: Path) -> None:
    """With copies on all nodes one vault is enough."""

    async def during(controller: Controller) -> None:
        await until(lambda: newest(controller) and copies(controller) == 3)
        doomed = list(vaults(controller).values())[1:]
        assert len(doomed) == 2
        for pid in doomed:
            os.kill(pid, signal.SIGKILL)
        open_gate(tmp_path, GATE)

    outcome = trained(tmp_path, ALL, during, snapshot_copies=3)
    assert len(outcome.state.faults_fired) == RANKS
    assert_succeeded(outcome, undisturbed)
    assert "restore from vault" in outcome.state.recoveries[0].decision


def test_everything_but_storage(undisturbed: Outcome, tmp_path: Path) -> None:
    """What vaults held is lost, and it is said; the checkpoint is older, and it is taken."""

    async def during(controller: Controller) -> None:
        await until(lambda: newest(controller) and controller._state.saved.get("storage") == 2)
        assert controller._vaults is not None
        # No other one is started in their place.
        controller._vaults._fleet.closed = True
        for pid in vaults(controller).values():
            os.kill(pid, signal.SIGKILL)
        await until(lambda: "vault" not in controller._state.saved)
        open_gate(tmp_path, GATE)

    outcome = trained(tmp_path, ALL, during, stored=True, checkpoint_every=2)
    assert len(outcome.state.faults_fired) == RANKS
    assert_succeeded(outcome, undisturbed)
    assert "restore from storage" in outcome.state.recoveries[0].decision
    assert any("what vault holds of step" in text for text in outcome.state.warnings)


def test_a_vault_dies_while_it_gets_a_part_and_another_takes_its_place(undisturbed: Outcome, tmp_path: Path) -> None:
    # Whichever snapshot is the first one.
    doom = [Fault(step, 0, point=FaultPoint.IN_SNAPSHOT, target="vault") for step in range(1, GATE + 1)]

    async def during(controller: Controller) -> None:
        await until(lambda: any("vault 0.0" in fired for fired in controller.state().faults_fired))
        await until(lambda: len(vaults(controller)) == len(NODES))
        await when_it_is_saved(controller, tmp_path)

    outcome = trained(tmp_path, [*doom, *ALL], during)
    assert len(outcome.state.faults_fired) == RANKS + 1
    assert_succeeded(outcome, undisturbed)
    assert "restore from vault" in outcome.state.recoveries[0].decision


def test_a_vault_dies_while_ranks_restore_from_it(undisturbed: Outcome, tmp_path: Path) -> None:
    """The other copy will do."""
    faults = [Fault(step, 0, point=FaultPoint.IN_RESTORE, target="vault") for step in range(1, GATE + 2)]

    async def during(controller: Controller) -> None:
        await until(lambda: newest(controller) and copies(controller) == 3)
        open_gate(tmp_path, GATE)

    outcome = trained(tmp_path, [*faults, *ALL], during, snapshot_copies=3)
    assert any("vault 0.0" in fired and "is given" in fired for fired in outcome.state.faults_fired)
    assert_succeeded(outcome, undisturbed)
    assert "restore from vault" in outcome.state.recoveries[0].decision


def test_living_ranks_go_back_to_a_snapshot_in_the_same_process(undisturbed: Outcome, tmp_path: Path) -> None:
    async def during(controller: Controller) -> None:
        await when_it_is_saved(controller, tmp_path)

    outcome = trained(tmp_path, ALL[1:2], during, recovery="restart")
    assert_succeeded(outcome, undisturbed)
    (recovery,) = outcome.state.recoveries
    assert recovery.world_after == 2
    assert "restore from vault" in recovery.decision


def test_a_vault_that_is_stopped_is_replaced(undisturbed: Outcome, tmp_path: Path) -> None:
    """Its copies are made again elsewhere; training notices nothing."""

    async def during(controller: Controller) -> None:
        await until(lambda: len(vaults(controller)) == len(NODES) and newest(controller))
        stopped = next(iter(vaults(controller)))
        os.kill(vaults(controller)[stopped], signal.SIGSTOP)
        await until(lambda: stopped not in vaults(controller) and len(vaults(controller)) == len(NODES))
        await when_it_is_saved(controller, tmp_path)

    outcome = trained(tmp_path, (), during)
    assert_succeeded(outcome, undisturbed)
    assert outcome.state.recoveries == ()


def test_the_vault_of_a_drained_node_gives_its_parts_away_and_goes_while_the_run_goes_on(
    undisturbed: Outcome, tmp_path: Path
) -> None:
    async def during(controller: Controller) -> None:
        await until(lambda: newest(controller) and copies(controller) == 2)
        assert controller._vaults is not None
        (drained,) = controller._vaults._fleet.on("b")
        controller.drain("b", "it is taken away")
        await until(lambda: drained not in vaults(controller))
        assert len(vaults(controller)) == 2
        await when_it_is_saved(controller, tmp_path)

    outcome = trained(tmp_path, ALL, during)
    assert_succeeded(outcome, undisturbed)
    (recovery,) = outcome.state.recoveries
    assert "restore from vault" in recovery.decision


def started(controller: int) -> set[int]:
    """What a controller's forkserver has started: ranks and vaults."""
    return {each.pid for server in psutil.Process(controller).children() for each in server.children()}


def test_the_controller_and_every_rank_are_killed_at_once_and_the_vault_is_late(
    undisturbed: Outcome, tmp_path: Path
) -> None:
    """As on a machine that is so busy that it takes long to find the next controller."""
    adopt = 0.4
    with Lives(tmp_path, ranks=RANKS, snapshot_every=1, gates=[GATE]) as lives:
        quick = replace(lives.plan.elastic.timeouts, adopt=adopt, orphan=60.0)
        lives.plan = replace(lives.plan, elastic=replace(lives.plan.elastic, timeouts=quick))
        folder = Path(lives.plan.folder or "")
        first = lives.begin()
        lives.await_step(GATE - 1)
        lives.until(lambda: any("vault" in entry.get("saved", ()) for entry in journal.read(folder)))
        assert first.pid is not None
        (vault,) = started(first.pid) - {*lives.pids()}
        os.kill(vault, signal.SIGSTOP)
        for pid in (first.pid, *lives.pids()):
            os.kill(pid, signal.SIGKILL)
        open_gate(tmp_path, GATE)
        second = lives.begin()
        lives.until(lambda: (lives.directory.controller() or (0,))[0] == 2)
        # Nothing happens meanwhile that could be awaited.
        time.sleep(3 * adopt)
        os.kill(vault, signal.SIGCONT)
        outcome = lives.ends(second)
    assert_succeeded(outcome, undisturbed)
    assert outcome.state.resumed.endswith("from vault")


def test_too_little_memory_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    outcome = trained(tmp_path, nodes=("a",), gates=(), snapshot_gib=0.001)
    assert outcome.state.phase is Phase.FAILED
    assert outcome.leftovers == []
    assert "snapshots need" in str(outcome.state.error)
    assert "start Ray with a larger object store" in str(outcome.state.error)
    assert outcome.samples == {}


def test_without_being_asked_for_snapshots_are_left_out_where_they_do_not_fit(
    undisturbed: Outcome, tmp_path: Path
) -> None:
    outcome = trained(tmp_path, nodes=("a",), gates=(), snapshot_gib=0.001, snapshot_every=None)
    assert_succeeded(outcome, undisturbed)
    (warning,) = outcome.state.warnings
    assert warning.startswith("there are no snapshots in memory: snapshots need")
    assert outcome.state.snapshots == "none"


def test_more_copies_than_nodes_are_told_of(undisturbed: Outcome, tmp_path: Path) -> None:
    async def during(controller: Controller) -> None:
        # The vault of the second node may come after the first snapshot.
        await until(lambda: "with 2 of 3 copies" in controller.state().snapshots)
        open_gate(tmp_path, GATE)

    outcome = trained(tmp_path, (), during, nodes=("a", "b"), snapshot_copies=3)
    assert_succeeded(outcome, undisturbed)
    assert any("elastic.snapshot_copies=3 are more than there are nodes" in text for text in outcome.state.warnings)
    assert not [each for each in psutil.Process().children(recursive=True) if "everstep-vault" in each.name()]


def test_fewer_nodes_than_copies_are_refused_where_that_is_asked_for(tmp_path: Path) -> None:
    """Also if snapshots themselves are not."""
    outcome = trained(tmp_path, nodes=("a",), gates=(), snapshot_every=None, snapshot_spread="refuse")
    assert outcome.state.phase is Phase.FAILED
    assert outcome.leftovers == []
    assert outcome.state.error == (
        "elastic.snapshot_copies=2 are more than there are nodes: a snapshot has 1 of each part: add nodes, ask for "
        "fewer copies, or set elastic.snapshot_spread=degrade"
    )
    assert outcome.samples == {}

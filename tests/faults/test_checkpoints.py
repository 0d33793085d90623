"""All dead is survivable: a run goes on from its newest whole checkpoint, in any world, with the same weights."""

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from everstep.actors.rank.cadence import FIRST
from everstep.actors.saved.manifest import FILE, folder_of
from everstep.conf.chaos import Fault, FaultPoint
from everstep.orchestrator.checkpoints import FOLDER
from everstep.orchestrator.controller import Controller
from everstep.orchestrator.local_cluster import LocalCluster
from everstep.orchestrator.view import Phase

from .harness import STEPS, During, Outcome, drive, open_gate, plan_of, until

EVERY = 2


def trained(
    folder: Path, ranks: int, chaos: Sequence[Fault] = (), during: During | None = None, **options: Any
) -> Outcome:
    """Train to the end with checkpoints, or go on in the folder of an earlier life."""
    plan = replace(plan_of(folder, ranks, chaos, **{"checkpoint_every": EVERY, **options}), folder=str(folder))
    return drive(plan, LocalCluster(plan.program()), folder, during)


def checkpoint(folder: Path, step: int) -> Path:
    return folder / FOLDER / folder_of(step)


def steps(folder: Path) -> list[int]:
    """Of all checkpoints that have a manifest."""
    found = (folder / FOLDER).glob(f"step-*/{FILE}")
    return sorted(int(path.parent.name.removeprefix("step-")) for path in found)


def assert_succeeded(outcome: Outcome, undisturbed: Outcome, resumed: str = "") -> None:
    assert outcome.state.phase is Phase.SUCCEEDED, (outcome.state.error, outcome.state.traceback)
    assert outcome.leftovers == []
    assert outcome.weights == undisturbed.weights
    assert outcome.rates == undisturbed.rates
    assert outcome.state.metrics["state_sha256"] == undisturbed.state.metrics["state_sha256"]
    assert outcome.state.metrics["loss"] == undisturbed.state.metrics["loss"]
    assert outcome.state.resumed == resumed


LIFE = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from faults.test_checkpoints import trained
trained(Path(sys.argv[2]), ranks=3, gates=(5,))
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of three ranks that was killed in its sixth step, with its controller."""
    folder = tmp_path_factory.mktemp("killed") / "run"
    tests = str(Path(__file__).resolve().parents[1])
    life = subprocess.Popen([sys.executable, "-c", LIFE, tests, str(folder)])
    try:
        asyncio.run(until(lambda: steps(folder) == [2, 4], 60.0))
    finally:
        life.send_signal(signal.SIGKILL)
        for path in folder.glob("*.log"):
            os.kill(int(path.stem), signal.SIGKILL)
        life.wait()
    return folder


@pytest.mark.parametrize("ranks", [1, 4])
def test_everything_is_killed_and_the_run_goes_on_in_another_world(
    ranks: int, killed: Path, undisturbed: Outcome, tmp_path: Path
) -> None:
    folder = tmp_path / killed.name
    shutil.copytree(killed, folder)
    open_gate(folder, 5)
    outcome = trained(folder, ranks, gates=(5,))
    assert_succeeded(outcome, undisturbed, "step 4, from storage")
    # What it was resumed from stays until a check has found a later state right.
    assert steps(folder) == [4, 6, 7]


def test_every_rank_is_killed_at_once(undisturbed: Outcome, tmp_path: Path) -> None:
    faults = [Fault(5, place, point=FaultPoint.IN_BACKWARD) for place in range(3)]

    async def when_it_is_saved(controller: Controller) -> None:
        await until(lambda: 4 in steps(tmp_path))
        open_gate(tmp_path, 5)

    outcome = trained(tmp_path, 3, faults, when_it_is_saved, gates=(5,))
    assert len(outcome.state.faults_fired) == 3
    assert_succeeded(outcome, undisturbed)
    assert "restore from storage" in outcome.state.recoveries[0].decision
    assert outcome.state.recoveries[0].world_after >= 1


def test_living_ranks_go_back_and_call_the_training_function_again(undisturbed: Outcome, tmp_path: Path) -> None:
    fault = Fault(5, 1, point=FaultPoint.IN_BACKWARD)

    async def when_it_is_saved(controller: Controller) -> None:
        await until(lambda: 4 in steps(tmp_path))
        open_gate(tmp_path, 5)

    outcome = trained(tmp_path, 3, [fault], when_it_is_saved, gates=(5,), recovery="restart")
    assert_succeeded(outcome, undisturbed)
    (recovery,) = outcome.state.recoveries
    assert recovery.world_after == 2
    assert "restore from storage" in recovery.decision


def test_how_often_may_be_left_to_the_run(undisturbed: Outcome, tmp_path: Path) -> None:
    outcome = trained(tmp_path / "run", 2, checkpoint_every=None)
    assert_succeeded(outcome, undisturbed)
    # The first shows what one costs here: too much for another one so soon.
    assert steps(tmp_path / "run") == [FIRST, STEPS]
    why = r"every \d+ steps: (Daly asks for one in .* \(0 in .*\)|a rank where one costs less asks for it)"
    assert re.match(why, outcome.state.cadence["checkpoint"])
    assert outcome.state.metrics["checkpoint_every"] > FIRST


def test_one_dies_while_its_part_is_copied(undisturbed: Outcome, tmp_path: Path) -> None:
    """That checkpoint is never whole; the first step of the smaller world is saved instead."""
    outcome = trained(tmp_path, 3, [Fault(4, 1, point=FaultPoint.IN_SNAPSHOT)])
    assert_succeeded(outcome, undisturbed)
    (fired,) = outcome.state.faults_fired
    assert "step 4 is being copied" in fired
    (recovery,) = outcome.state.recoveries
    assert recovery.world_after == 2


def test_damaged_ones_are_passed_over_and_it_is_said_why(undisturbed: Outcome, tmp_path: Path) -> None:
    assert_succeeded(trained(tmp_path, 2, keep=3), undisturbed)
    assert steps(tmp_path) == [4, 6, 7]
    newest, older = (next(checkpoint(tmp_path, step).glob("part-0001-*")) for step in (7, 6))
    os.truncate(newest, 1000)
    content = bytearray(older.read_bytes())
    content[-1] ^= 1
    older.write_bytes(content)
    outcome = trained(tmp_path, 3, keep=3)
    assert_succeeded(outcome, undisturbed, "step 4, from storage")
    first, second = outcome.state.warnings
    assert "the checkpoint of step 7 is not taken" in first
    assert "has 1000 bytes instead of" in first
    assert "the checkpoint of step 6 is not taken" in second
    assert "its SHA-256 is another one" in second
    # They are made anew on the way.
    assert steps(tmp_path) == [4, 6, 7]
    again = trained(tmp_path, 1, keep=3)
    assert_succeeded(again, undisturbed, "step 7, from storage")
    assert (again.state.warnings, again.state.metrics["microbatches_computed"]) == ((), 0)


@pytest.mark.parametrize(
    ("change", "named"),
    [({"seed": 1}, "another"), ({"width": 310}, "another"), ({"steps": 3}, "has taken 7 steps already")],
)
def test_another_run_under_the_same_name_is_refused(change: dict[str, Any], named: str, finished: Path) -> None:
    outcome = trained(finished, 2, **change)
    assert outcome.state.phase is Phase.FAILED
    assert outcome.leftovers == []
    assert named in str(outcome.state.error)
    assert steps(finished) == [6, 7]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    trained(folder, 2)
    return folder


def test_training_goes_on_while_storage_is_down(undisturbed: Outcome, tmp_path: Path) -> None:
    async def break_and_mend(controller: Controller) -> None:
        await until(lambda: 2 in steps(tmp_path))
        (tmp_path / FOLDER).rename(tmp_path / "away")
        (tmp_path / FOLDER).write_text("in the way")
        open_gate(tmp_path, 3)
        await until(lambda: any("is not written" in text for text in controller.state().warnings))
        (tmp_path / FOLDER).unlink()
        (tmp_path / "away").rename(tmp_path / FOLDER)
        open_gate(tmp_path, 6)

    outcome = trained(tmp_path, 3, during=break_and_mend, gates=(3, 6))
    assert_succeeded(outcome, undisturbed)
    assert steps(tmp_path)[-1] == 7


def test_what_cannot_be_read_when_it_is_needed_is_passed_over_as_well(undisturbed: Outcome, tmp_path: Path) -> None:
    """It was whole when it was written, and everybody is to go back to it."""
    fault = Fault(5, 1, point=FaultPoint.IN_BACKWARD)

    async def damage(controller: Controller) -> None:
        await until(lambda: controller._state.saved.get("storage") == 4)
        os.truncate(next(checkpoint(tmp_path, 4).glob("part-0000-*")), 10)
        open_gate(tmp_path, 5)

    outcome = trained(tmp_path, 3, [fault], damage, gates=(5,), recovery="restart")
    assert_succeeded(outcome, undisturbed)
    assert any("of step 4 cannot be read" in text and "10 bytes" in text for text in outcome.state.warnings)
    assert [line["step"] for line in outcome.journal if line["what"] == "opened"] == [0, 4, 2]

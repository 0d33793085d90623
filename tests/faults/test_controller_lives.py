"""The controller is killed, stopped, replaced: training goes on, and the weights are those of the undisturbed run."""

import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from everstep.conf.chaos import Fault, FaultPoint
from everstep.orchestrator.records import json_lines
from everstep.orchestrator.view import Phase

from .controllers import DEPOSED, Lives
from .harness import STEPS, Outcome, assert_as_if_undisturbed, open_gate

A_DEATH = (Fault(3, 2, point=FaultPoint.IN_BACKWARD),)


def assert_nothing_is_used_twice(journal: Sequence[Mapping[str, Any]]) -> None:
    """Generations only count up over all controller lives, and each is opened once."""
    opened = [tuple(map(int, entry["generation"].split("."))) for entry in journal if entry["what"] == "opened"]
    assert opened == sorted(set(opened)), opened


def assert_whole(outcome: Outcome, undisturbed: Outcome, lost: int = 0, faults: Sequence[Fault] = ()) -> None:
    assert_as_if_undisturbed(outcome, undisturbed, faults, lost)
    assert_nothing_is_used_twice(outcome.journal)


def test_training_goes_on_without_a_controller(undisturbed: Outcome, tmp_path: Path) -> None:
    with Lives(tmp_path, ranks=4) as lives:
        lives.dies("a step is taken")
        lives.await_step(STEPS - 1)
        outcome = lives.ends()
    assert_whole(outcome, undisturbed)
    # Nobody was disturbed: the first generation is the only one.
    assert outcome.state.metrics["generation"] == "1.1"
    assert outcome.state.recoveries == ()
    records = json_lines.read(Path(lives.plan.folder or "", json_lines.FILE))
    assert [record.step for record in records] == list(range(STEPS))


@pytest.mark.parametrize(
    "dooms",
    [
        # Each life comes a little further than the one before.
        ["a loss is noticed", "one is asked to report", "one has reported", "the next generation is written down",
         "it has taken over", "one is told of it", "one is in it", "all are in it"],
        ["one is told of it"],
    ],
    ids=["at each moment", "when one knows more than the others"],
)  # fmt: skip
def test_it_dies_in_a_recovery(dooms: list[str], undisturbed: Outcome, tmp_path: Path) -> None:
    with Lives(tmp_path, ranks=4, chaos=A_DEATH, gates=[4]) as lives:
        for doom in dooms:
            lives.dies(doom)
        open_gate(tmp_path, 4)
        outcome = lives.ends()
    assert_whole(outcome, undisturbed, 1, A_DEATH)
    (recovery,) = outcome.state.recoveries
    assert (recovery.world_before, recovery.world_after, recovery.lost) == (4, 3, ("2.0",))
    assert "2.0" in (outcome.state.first_cause or "")


def assert_nobody_is_lost(outcome: Outcome, target: int, newcomers: int = 0) -> None:
    """A group may have to be built once more: who builds one, or takes its state, meets others at the controller."""
    assert outcome.state.target == target
    assert not any(recovery.lost for recovery in outcome.state.recoveries)
    asked = [entry for entry in outcome.journal if entry["what"] == "rank asked for" and entry["seat"] is None]
    assert len(asked) == newcomers


CHANGE = ("one is asked to report", "one has reported", "the next generation is written down", "one is in it")


@pytest.mark.parametrize("doom", ["more are asked for", *CHANGE])
def test_it_dies_while_the_run_grows(doom: str, undisturbed: Outcome, tmp_path: Path) -> None:
    with Lives(tmp_path, ranks=2, gates=[2, 3, 4, 5], replace=True) as lives:
        lives.dies(doom, wanted=3)
        last = lives.begin()
        lives.until(lives.adopted)
        for gate in (2, 3, 4):
            seen = len(lives.worlds())
            open_gate(tmp_path, gate)
            # Once in each step it is tried to let in who is ready.
            lives.until(lambda seen=seen: lives.worlds()[-1] == 3 or len(lives.worlds()) > seen)  # type: ignore[misc]
        open_gate(tmp_path, 5)
        outcome = lives.ends(last)
    assert_whole(outcome, undisturbed, lost=1)
    assert_nobody_is_lost(outcome, target=3, newcomers=1)


@pytest.mark.parametrize("doom", ["some are to leave", *CHANGE])
def test_it_dies_while_ranks_are_told_to_leave(doom: str, undisturbed: Outcome, tmp_path: Path) -> None:
    with Lives(tmp_path, ranks=4, gates=[2, 3]) as lives:
        lives.dies(doom, wanted=2)
        last = lives.begin()
        lives.until(lives.adopted)
        # Whoever is told in step 2 leaves in step 3.
        lives.until(lives.told_to_leave)
        open_gate(tmp_path, 2)
        lives.until(lambda: lives.worlds()[-1] == 2)
        open_gate(tmp_path, 3)
        outcome = lives.ends(last)
    assert_whole(outcome, undisturbed, lost=2)
    assert_nobody_is_lost(outcome, target=2)


def test_it_dies_while_ranks_leave(undisturbed: Outcome, tmp_path: Path) -> None:
    with Lives(tmp_path, ranks=4, gates=[3, 4, STEPS - 1]) as lives:
        first = lives.begin("two go on", wanted=2)
        lives.until(lambda: len(lives.worlds()) == 2)
        open_gate(tmp_path, 3)
        lives.await_doom(first)
        last = lives.begin()
        lives.until(lives.adopted)
        open_gate(tmp_path, 4)
        lives.until(lambda: lives.worlds()[-1] == 2)
        open_gate(tmp_path, STEPS - 1)
        outcome = lives.ends(last)
    assert_whole(outcome, undisturbed, lost=2)
    assert_nobody_is_lost(outcome, target=2)


def test_it_dies_while_ranks_start(undisturbed: Outcome, tmp_path: Path) -> None:
    with Lives(tmp_path, ranks=4) as lives:
        lives.dies("a rank is up")
        outcome = lives.ends()
    assert_whole(outcome, undisturbed)
    assert outcome.state.metrics["generation"] == "2.1"
    assert len(outcome.decided) == 4, "ranks were started twice"


@pytest.mark.parametrize("dooms", [["one has finished", "one is let go"], ["the end is written down"]])
def test_it_dies_in_the_last_step(dooms: list[str], undisturbed: Outcome, tmp_path: Path) -> None:
    with Lives(tmp_path, ranks=4) as lives:
        for doom in dooms:
            lives.dies(doom)
        outcome = lives.ends()
    assert outcome.state.phase is Phase.SUCCEEDED, outcome.state.error
    assert outcome.weights == undisturbed.weights
    records = json_lines.read(Path(lives.plan.folder or "", json_lines.FILE))
    assert [record.step for record in records] == list(range(STEPS))


def test_a_rank_dies_while_there_is_no_controller(undisturbed: Outcome, tmp_path: Path) -> None:
    with Lives(tmp_path, ranks=4) as lives:
        lives.dies("a step is taken")
        os.kill(lives.pids()[0], signal.SIGKILL)
        outcome = lives.ends()
    assert_whole(outcome, undisturbed, 1)
    (recovery,) = outcome.state.recoveries
    assert recovery.world_after == 3


def test_the_journal_is_lost(undisturbed: Outcome, tmp_path: Path) -> None:
    with Lives(tmp_path, ranks=4, chaos=A_DEATH) as lives:
        lives.dies("one has reported")
        shutil.rmtree(Path(lives.plan.folder or "", "journal"))
        outcome = lives.ends()
    # Nobody is left who knows of the fault.
    assert_as_if_undisturbed(outcome, undisturbed, (), 1)


def test_two_controllers(undisturbed: Outcome, tmp_path: Path) -> None:
    """One is stopped and replaced; when it wakes it ends itself, and nothing of it is seen."""
    with Lives(tmp_path, ranks=4, gates=[3]) as lives:
        old = lives.begin()
        lives.await_step(2)
        assert old.pid is not None
        os.kill(old.pid, signal.SIGSTOP)
        new = lives.begin()
        lives.until(lambda: lives.directory.newest() == 2)
        lives.until(lives.adopted)
        os.kill(old.pid, signal.SIGCONT)
        old.join(20.0)
        assert old.exitcode == DEPOSED
        open_gate(tmp_path, 3)
        outcome = lives.ends(new)
    assert_whole(outcome, undisturbed)
    assert outcome.state.recoveries == ()
    assert outcome.state.metrics["generation"] == "1.1"

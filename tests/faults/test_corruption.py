"""A rank computes wrong numbers: it is named and shut out, and the run ends as if it had never been."""

from pathlib import Path
from typing import Any

import pytest
from everstep.actors.saved.catalogue import Catalogue
from everstep.actors.saved.storage import Storage
from everstep.conf.chaos import Fault, FaultKind, FaultPoint
from everstep.orchestrator.checkpoints import FOLDER
from everstep.orchestrator.controller import Controller
from everstep.orchestrator.local_cluster import LocalCluster
from everstep.orchestrator.records import json_lines
from everstep.orchestrator.view import Phase

from .controllers import Lives
from .harness import STEPS, Outcome, drive, open_gate, plan_of, run, until

# Lowest bit of the exponent: the number is halved or doubled, and the loss goes on as if nothing were.
BIT = 23
EVERY = 2


def flip(step: int, point: FaultPoint = FaultPoint.IN_OPTIMIZER, **facts: Any) -> Fault:
    return Fault(step, 2, point=point, kind=FaultKind.FLIP, bit=BIT, **facts)


def assert_named_and_undone(outcome: Outcome, undisturbed: Outcome, to: int, world: int = 3) -> None:
    state = outcome.state
    assert state.phase is Phase.SUCCEEDED, (state.error, state.traceback)
    (fired,) = state.faults_fired
    assert "flip of bit 23 of rank 2.0" in fired
    verdict = state.verdicts[0]
    assert (verdict.kind, verdict.outcome, verdict.who) == ("corruption", "attributed", ("rank 2.0",)), state.verdicts
    assert str(state.first_cause).startswith("rank 2.0: it computes wrong")
    assert any(recovery.decision.startswith("everybody goes back to ") for recovery in state.recoveries)
    (opened, *_) = [event for event in outcome.journal if "everybody goes back" in str(event.get("reason", ""))]
    assert opened["step"] == to
    assert outcome.leftovers == []
    assert state.metrics["world"] == world
    assert outcome.weights == undisturbed.weights
    for step, samples in undisturbed.samples.items():
        assert set(outcome.samples[step]) == set(samples), f"sample ids of step {step}"
        # The steps that were undone had other losses, and the same rates.
        assert undisturbed.rates[step] <= outcome.rates[step]
        assert {rate for rate, _ in outcome.rates[step]} == {rate for rate, _ in undisturbed.rates[step]}


def test_what_is_not_known_to_be_right_is_taken_from_the_start(undisturbed: Outcome, tmp_path: Path) -> None:
    outcome = run(tmp_path, 4, [flip(1)], check_every=EVERY, kept=True)
    assert_named_and_undone(outcome, undisturbed, to=0)
    assert "state of step 2: rank 2 holds another" in outcome.state.verdicts[0].reason
    assert outcome.state.sources[-1] == "start: step 0, taken"


def test_who_ends_with_another_state_is_named(undisturbed: Outcome, tmp_path: Path) -> None:
    """Between the last check and the end; the others have finished when they go back."""
    outcome = run(tmp_path, 4, [flip(STEPS - 1)], check_every=STEPS - 1, kept=True, checkpoint_every=STEPS)
    assert_named_and_undone(outcome, undisturbed, to=0)
    assert f"state of step {STEPS}: rank 2 holds another" in outcome.state.verdicts[0].reason
    saved = Catalogue(Storage(str(tmp_path / "kept" / FOLDER))).newest().manifest
    assert saved is not None
    assert (saved.step, saved.generation) == (STEPS, outcome.state.generation)


@pytest.mark.parametrize("source", ["vault", "storage"])
def test_everybody_goes_back_to_the_newest_verified_state(undisturbed: Outcome, tmp_path: Path, source: str) -> None:
    """Newer ones are there, and are wrong."""
    saving = {"vault": {"snapshot_every": 1}, "storage": {"checkpoint_every": 1, "keep": 1}}[source]
    plan = plan_of(tmp_path, 4, [flip(4)], check_every=EVERY, kept=True, gates=(3, 5), **saving)

    async def saved(controller: Controller) -> None:
        """Steps are shorter than it takes to save one."""
        await until(lambda: 2 in controller._state.held.get(source, ()))
        open_gate(tmp_path, 3)
        await until(lambda: max(controller._state.held[source]) > 2)
        open_gate(tmp_path, 5)

    outcome = drive(plan, LocalCluster(plan.program()), tmp_path, saved)
    assert_named_and_undone(outcome, undisturbed, to=2)
    assert f"from {source}" in outcome.state.recoveries[0].decision


def test_a_wrong_gradient_shows_in_an_audit(undisturbed: Outcome, tmp_path: Path) -> None:
    """All hold the same sum, so all states are wrong alike."""
    outcome = run(tmp_path, 4, [flip(1, FaultPoint.IN_BACKWARD, recurring=True)], check_every=1, kept=True)
    assert_named_and_undone(outcome, undisturbed, to=0)
    assert "audit of step" in outcome.state.verdicts[0].reason


def test_another_takes_its_place(undisturbed: Outcome, tmp_path: Path) -> None:
    outcome = run(tmp_path, 4, [flip(1)], spares=1, check_every=EVERY, recovery="swap")
    assert_named_and_undone(outcome, undisturbed, to=0, world=4)


def test_it_is_only_said_where_that_is_wanted(undisturbed: Outcome, tmp_path: Path) -> None:
    """Here the ranks end with different weights, which ends the run."""
    outcome = run(tmp_path, 4, [flip(1)], check_every=EVERY, on_corruption="observe")
    assert outcome.state.phase is Phase.FAILED
    assert "ranks ended with different" in str(outcome.state.error)
    verdict = outcome.state.verdicts[0]
    assert (verdict.who, verdict.done) == (("rank 2.0",), "nothing, as elastic.on_corruption says")
    assert outcome.state.recoveries == ()


@pytest.mark.parametrize(
    "dooms",
    [["a verdict is written down"], ["one is shut out", "one is asked to report", "one is told of it", "one is in it"]],
    ids=["at the verdict", "at each moment"],
)
def test_the_controller_dies_in_the_middle_of_it(dooms: list[str], undisturbed: Outcome, tmp_path: Path) -> None:
    with Lives(tmp_path, ranks=4, chaos=[flip(1)], check_every=EVERY) as lives:
        for doom in dooms:
            lives.dies(doom)
        outcome = lives.ends()
    state = outcome.state
    assert state.phase is Phase.SUCCEEDED, state.error
    assert state.verdicts[0].who == ("rank 2.0",)
    assert outcome.weights == undisturbed.weights
    records = json_lines.read(Path(lives.plan.folder or "", json_lines.FILE))
    assert [record.step for record in records] == list(range(STEPS))
    losses = {step: {loss for _, loss in said} for step, said in undisturbed.rates.items()}
    assert all({record.loss} == losses[record.step] for record in records)

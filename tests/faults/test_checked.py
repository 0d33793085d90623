"""With a check at every step, runs through failures are what they are without: same weights, and nobody is blamed."""

from pathlib import Path

import pytest
from everstep.conf.chaos import Fault, FaultPoint
from everstep.orchestrator.view import Phase

from .harness import Outcome, assert_as_if_undisturbed, assert_each_index_once, run

STEP = 3


def assert_nobody_is_blamed(outcome: Outcome) -> None:
    assert outcome.state.phase is Phase.SUCCEEDED, (outcome.state.error, outcome.state.traceback)
    assert [verdict for verdict in outcome.state.verdicts if verdict.outcome == "attributed"] == []
    assert {entry["what"] for entry in outcome.journal}.isdisjoint({"unknown message", "impossible message"})


def test_nothing_changes(undisturbed: Outcome, tmp_path: Path) -> None:
    outcome = run(tmp_path, ranks=4, check_every=1)
    assert_as_if_undisturbed(outcome, undisturbed, (), lost=0)
    assert_nobody_is_blamed(outcome)
    assert outcome.state.verdicts == ()
    # The training function was given the audited microbatches by two more ranks.
    assert {sum(samples.values()) for step, samples in outcome.samples.items() if step} == {16 + 2}


@pytest.mark.parametrize(
    ("point", "spares"),
    [
        (FaultPoint.BEFORE_FORWARD, 1),
        (FaultPoint.IN_BACKWARD, 0),
        (FaultPoint.IN_BACKWARD, 1),
        (FaultPoint.IN_VOTE, 0),
        (FaultPoint.IN_OPTIMIZER, 0),
    ],
)
def test_a_rank_dies_between_its_checks(point: FaultPoint, spares: int, undisturbed: Outcome, tmp_path: Path) -> None:
    faults = [Fault(STEP, 2, point=point)]
    recovery = "swap" if spares else "shrink"
    outcome = run(tmp_path, ranks=4, chaos=faults, spares=spares, check_every=1, recovery=recovery)
    assert_nobody_is_blamed(outcome)
    assert len(outcome.state.faults_fired) == 1
    # When a spare comes in depends on how far the others are; that makes no difference to what is computed.
    assert outcome.state.metrics["world"] in (3, 3 + spares)
    assert outcome.weights == undisturbed.weights
    assert outcome.rates == undisturbed.rates
    assert_each_index_once(outcome)


def test_float_sums_are_checked_too(tmp_path: Path) -> None:
    outcome = run(tmp_path, ranks=3, check_every=1, reduction="float")
    assert_nobody_is_blamed(outcome)
    assert outcome.state.verdicts == ()

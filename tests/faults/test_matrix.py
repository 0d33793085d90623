"""Every named point, one dead and two at once: the run ends as if nothing had happened."""

from pathlib import Path

import pytest
from everstep.conf.chaos import Fault, FaultPoint

from .harness import WIDE, Outcome, assert_as_if_undisturbed, run, twins

STEP = 3
# Points that exist only while another loss is being answered.
IN_RECOVERY = (FaultPoint.IN_REPORT, FaultPoint.IN_REBUILD, FaultPoint.IN_EXTENSION)
# Those that need other models, ranks that come in, or checkpoints.
ELSEWHERE = (FaultPoint.IN_TRANSFER, FaultPoint.IN_RESTORE, FaultPoint.IN_SNAPSHOT)
IN_STEP = tuple(point for point in FaultPoint if point not in (*IN_RECOVERY, *ELSEWHERE))


@pytest.mark.parametrize("point", IN_STEP)
def test_one_dies(point: FaultPoint, undisturbed: Outcome, tmp_path: Path) -> None:
    faults = [Fault(STEP, 2, point=point)]
    outcome = run(tmp_path, ranks=4, chaos=faults)
    assert_as_if_undisturbed(outcome, undisturbed, faults, lost=1)
    assert len(outcome.state.recoveries) == 1


@pytest.mark.parametrize("point", IN_STEP)
def test_two_die_at_once(point: FaultPoint, undisturbed: Outcome, tmp_path: Path) -> None:
    faults = twins([Fault(STEP, 2, point=point)], other=0)
    outcome = run(tmp_path, ranks=4, chaos=faults)
    assert_as_if_undisturbed(outcome, undisturbed, faults, lost=2)


def test_one_dies_in_a_transfer(undisturbed_wide: Outcome, tmp_path: Path) -> None:
    faults = [Fault(STEP, 2, point=FaultPoint.IN_TRANSFER)]
    outcome = run(tmp_path, ranks=4, chaos=faults, width=WIDE)
    assert_as_if_undisturbed(outcome, undisturbed_wide, faults, lost=1)
    assert "of the output buffer written by peers" in outcome.state.faults_fired[0]


def test_two_die_in_a_transfer(undisturbed_wide: Outcome, tmp_path: Path) -> None:
    faults = twins([Fault(STEP, 2, point=FaultPoint.IN_TRANSFER)], other=0)
    outcome = run(tmp_path, ranks=4, chaos=faults, width=WIDE)
    assert_as_if_undisturbed(outcome, undisturbed_wide, faults, lost=2)


@pytest.mark.parametrize("point", IN_RECOVERY)
def test_another_dies_in_the_recovery(point: FaultPoint, undisturbed: Outcome, tmp_path: Path) -> None:
    faults = [Fault(STEP, 2, point=FaultPoint.IN_BACKWARD), Fault(STEP, 1, point=point)]
    outcome = run(tmp_path, ranks=4, chaos=faults, hold=(2, STEP))
    assert_as_if_undisturbed(outcome, undisturbed, faults, lost=2)


@pytest.mark.parametrize("point", IN_RECOVERY)
def test_two_more_die_in_the_recovery(point: FaultPoint, undisturbed: Outcome, tmp_path: Path) -> None:
    faults = [Fault(STEP, 2, point=FaultPoint.IN_BACKWARD), *twins([Fault(STEP, 1, point=point)], other=3)]
    outcome = run(tmp_path, ranks=4, chaos=faults, hold=(2, STEP))
    assert_as_if_undisturbed(outcome, undisturbed, faults, lost=3)

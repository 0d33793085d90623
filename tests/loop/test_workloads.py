"""Shadows compute all that a loop can ask for alike, and add none of it: numbers, evaluations, buffers."""

from pathlib import Path

import pytest
from everstep.conf.chaos import Fault, FaultPoint

from .drive import assert_as_reference, assert_fired, assert_same, launch, reference
from .test_numbers import STEPS, numbers_everywhere
from .test_state import buffers_that_change

# Six microbatches on five ranks: three majors of two; 3 repeats 0, and 4 repeats 1.
RANKS = 5


@pytest.mark.parametrize(
    "faults",
    [
        [Fault(2, 0, point=FaultPoint.IN_BACKWARD), Fault(3, 2, point=FaultPoint.BEFORE_VOTE)],
        # These positions begin with evaluations.
        [Fault(0, 0, point=FaultPoint.IN_FORWARD), Fault(STEPS, 1, point=FaultPoint.IN_FORWARD)],
    ],
    ids=["in the step", "in the first and the last evaluation"],
)
def test_numbers_and_evaluations_with_shadows(faults: list[Fault], tmp_path: Path) -> None:
    config = {"evaluates": True, "workers": 0}
    expected = reference(numbers_everywhere, tmp_path / "plain", config)
    outcome = launch(numbers_everywhere, tmp_path / "ranks", RANKS, faults, config, workload="versatile")
    assert_fired(outcome, faults)
    assert_same(outcome, expected)


def test_buffers_with_shadows(tmp_path: Path) -> None:
    faults = [Fault(2, 1, point=FaultPoint.AFTER_VOTE), Fault(3, 0, point=FaultPoint.IN_FORWARD)]
    assert_as_reference(buffers_that_change, tmp_path, faults, RANKS, buffers="fold", workload="versatile")

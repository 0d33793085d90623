"""The same error three times at the same position ends the run: more ranks would only be lost to it as well.

Where poison is not skipped, the second rank that raises alike ends it already. What is left are errors that come in one
microbatch after another while poison is skipped, each for the first time.
"""

import pytest
from everstep.orchestrator.machine.events import Action
from everstep.orchestrator.view import Phase
from everstep.policies.world import Position

from .machine_script import START, Script

# Six ranks and twelve microbatches: rank r plans 2r and 2r + 1.


def started() -> Script:
    return Script(ranks=6, microbatches=12, skip_poison=True).boot()


def lose(
    script: Script, rank: int, microbatch: int | None, position: Position = START, at: str = "train.py:1"
) -> list[Action]:
    """It raises and is gone; the survivors report, and go on."""
    actions = script.fail_in(rank, microbatch, position, at)
    actions += script.end(rank)
    if not script.state.phase.ended:
        for other in script.state.members:
            actions += script.report(int(other.incarnation.removeprefix("rank-")), position)
    return actions


def test_the_third_time_ends_the_run_with_the_step_and_the_cause() -> None:
    script = started()
    lose(script, 0, 1)
    lose(script, 1, 3)
    assert script.look.phase is Phase.RECOVERING
    script.fail_in(2, 5)
    assert script.error == (
        "the error is deterministic, 3 ranks met it at step 0 (microbatches 1, 3, 5): ValueError: bad (train.py:1)"
    )
    assert script.look.traceback == "trace"
    assert script.look.first_cause == "rank 0.0: ValueError: bad (train.py:1)"


def test_recoveries_in_between_do_not_make_it_another_error() -> None:
    script = started()
    for rank, microbatch in ((0, 1), (1, 3)):
        lose(script, rank, microbatch)
        script.join(*range(rank + 1, 6))
    script.fail_in(2, 5)
    assert "deterministic" in script.error


def test_attempts_at_one_step_are_one_step() -> None:
    script = started()
    lose(script, 0, 1)
    lose(script, 1, 3, Position(0, attempt=1))
    script.fail_in(2, 5, Position(0, attempt=2))
    assert "deterministic" in script.error


@pytest.mark.parametrize(
    ("position", "at"),
    [(START, "elsewhere.py:9"), (Position(1), "train.py:1"), (Position(0, unit=1), "train.py:1")],
)
def test_another_error_or_another_position_is_another_matter(position: Position, at: str) -> None:
    script = started()
    lose(script, 0, 1)
    lose(script, 1, 3)
    lose(script, 2, 5, position, at)
    assert script.look.phase is Phase.RECOVERING
    script.fail_in(3, 7)
    assert "deterministic" in script.error, "the third of the first kind"


def test_what_poison_explains_is_not_the_fault_of_the_function() -> None:
    script = started()
    lose(script, 0, 1)
    lose(script, 1, 1)
    assert script.look.warnings != ()
    lose(script, 2, 5)
    lose(script, 3, 7)
    assert script.look.phase is Phase.RECOVERING, "one microbatch that is known, and two new ones"
    script.fail_in(4, 9)
    assert script.error.startswith("the error is deterministic, 3 ranks met it at step 0 (microbatches 5, 7, 9)")


def test_an_error_outside_of_microbatches_counts_too() -> None:
    script = started()
    lose(script, 0, None)
    lose(script, 1, 3)
    script.fail_in(2, 5)
    assert "3 ranks met it at step 0 (microbatches 3, 5)" in script.error


def test_ranks_that_are_killed_are_no_errors_alike() -> None:
    """Three machines may die in one step; which microbatch each was at is not known, so nothing is blamed."""
    script = Script(ranks=6, microbatches=12).boot()
    for rank in (0, 1, 2):
        script.end(rank)
        for other in script.state.members:
            script.report(int(other.incarnation.removeprefix("rank-")))
    assert script.look.phase is Phase.RECOVERING


def test_by_default_two_are_enough() -> None:
    script = Script(ranks=6, microbatches=12).boot()
    lose(script, 0, 1)
    script.fail_in(1, 3)
    assert script.error == "the training function fails alike on several ranks: ValueError: bad (train.py:1)"

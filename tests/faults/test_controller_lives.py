"""The controller is killed, stopped, replaced: training goes on, and the weights are those of the undisturbed run."""

from pathlib import Path

from .controllers import Lives
from .harness import Outcome, assert_as_if_undisturbed


def test_training_goes_on_without_a_controller(undisturbed: Outcome, tmp_path: Path) -> None:
    with Lives(tmp_path, ranks=4, kept=True) as lives:
        lives.dies("a step is taken")
        lives.await_step(6)
        outcome = lives.ends()
    assert_as_if_undisturbed(outcome, undisturbed, [], lost=0)
    assert outcome.state.recoveries == ()

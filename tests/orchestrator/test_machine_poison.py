"""A microbatch that fails on two ranks is left out of its step if the user wants it so, and of no other."""

import pytest
from everstep.actors.messages import Open
from everstep.orchestrator.machine.events import Action
from everstep.orchestrator.view import Phase
from everstep.policies.world import Position

from .machine_script import START, Script, sent

# Five ranks and ten microbatches: rank r plans 2r and 2r + 1.


def started(ranks: int = 5, minimum: int = 1) -> Script:
    return Script(ranks=ranks, minimum=minimum, microbatches=2 * ranks, skip_poison=True).boot()


def lose(script: Script, rank: int, microbatch: int, position: Position = START, at: str = "loss.py:7") -> list[Action]:
    """It raises in this microbatch and is gone; the survivors report, and go on."""
    script.fail_in(rank, microbatch, position, at)
    actions = script.end(rank)
    for other in script.state.members:
        actions += script.report(int(other.incarnation.removeprefix("rank-")), position)
    return actions


def poison(actions: list[Action], rank: int = 0) -> frozenset[int]:
    """What the newest of these generations must leave out."""
    message = sent(actions, rank, Open)[-1]
    return message.poison.get(message.position.step, frozenset())


def test_a_microbatch_that_fails_on_two_ranks_is_skipped_and_its_samples_are_named() -> None:
    script = started()
    assert poison(lose(script, 1, 3)) == frozenset(), "so far it may be the rank's own fault"
    actions = lose(script, 2, 3, at="elsewhere.py:9")
    assert poison(actions) == {3}
    assert script.look.phase is Phase.RECOVERING
    assert script.look.warnings == (
        "microbatch 3 of step 0 is poison and is skipped (samples 43, 53): ValueError: bad (loss.py:7)",
    )
    (record,) = script.records("poison")
    assert record.facts["samples"] == [43, 53]
    # Somebody answers for it all the same, so that the step is whole.
    (opened,) = sent(actions, 0, Open)
    assert sorted(index for given in opened.indices.values() for index in given) == list(range(10))
    script.join(0, 3, 4)
    script.resume(0, 3, 4)
    assert script.look.phase is Phase.RUNNING


def test_by_default_it_ends_the_run() -> None:
    script = Script().boot()
    lose(script, 1, 3)
    script.fail_in(2, microbatch=3, at="elsewhere.py:9")
    assert script.error.startswith("microbatch 3 of step 0 is poison, it failed on two ranks (samples 43, 53)")
    assert script.look.warnings == ()


def test_it_is_no_poison_in_later_steps() -> None:
    script = started()
    lose(script, 1, 3)
    lose(script, 2, 3)
    script.join(0, 3, 4)
    script.resume(0, 3, 4)
    script.end(3)
    actions = script.report(0, Position(1)) + script.report(4, Position(1))
    assert poison(actions) == frozenset()


def test_it_stays_poison_when_more_is_lost_in_the_same_step() -> None:
    script = started()
    lose(script, 1, 3)
    lose(script, 2, 3)
    script.end(3)
    actions = script.report(0) + script.report(4)
    assert poison(actions) == {3}


def test_it_stays_poison_when_the_attempt_is_void() -> None:
    script = started()
    lose(script, 1, 3)
    lose(script, 2, 3)
    script.join(0, 3, 4)
    script.resume(0, 3, 4)
    script.end(3)
    again = Position(0, attempt=1)
    actions = script.report(0, again) + script.report(4, again)
    assert poison(actions) == {3}


def test_it_may_be_found_in_a_later_attempt() -> None:
    script = started()
    lose(script, 1, 3, Position(0, attempt=1))
    assert poison(lose(script, 2, 3, Position(0, attempt=1))) == {3}
    script.end(3)
    again = Position(0, attempt=2)
    assert poison(script.report(0, again) + script.report(4, again)) == {3}


def test_a_microbatch_is_the_same_wherever_its_step_stands_after_evaluations_were_left_out() -> None:
    """Whoever goes back to a saved state does not come to the evaluations before the step again."""
    script = started()
    lose(script, 1, 3, Position(2, unit=1))
    assert poison(lose(script, 2, 3, Position(2), at="elsewhere.py:9")) == {3}
    assert sent(script.history, 0, Open)[-1].poison == {2: frozenset({3})}


def test_several_poison_microbatches_in_one_step() -> None:
    """The same line of the loss fails on each of them: only its microbatches have failed twice, not the function."""
    script = started()
    lose(script, 1, 3)
    assert poison(lose(script, 2, 3)) == {3}
    assert poison(lose(script, 3, 7)) == {3}
    assert poison(lose(script, 4, 7)) == {3, 7}
    assert len(script.look.warnings) == 2
    script.join(0)
    script.resume(0)
    assert script.look.phase is Phase.RUNNING


def test_a_third_rank_that_was_given_it_too_early_to_know_adds_no_second_warning() -> None:
    script = started()
    lose(script, 1, 3)
    lose(script, 2, 3)
    lose(script, 3, 3)
    assert len(script.look.warnings) == 1


@pytest.mark.parametrize(
    ("ranks", "minimum", "text"),
    [
        (3, 2, "1 of 2 replicas are left, the minimum is 2; first cause: rank 0.0: ValueError: bad (loss.py:7)"),
        (2, 1, "all 1 replicas are lost; first cause: rank 0.0: ValueError: bad (loss.py:7)"),
    ],
)
def test_poison_that_took_the_last_ranks_ends_the_run(ranks: int, minimum: int, text: str) -> None:
    script = started(ranks, minimum)
    lose(script, 0, 1)
    script.join(*range(1, ranks))
    script.resume(*range(1, ranks))
    lose(script, 1, 1)
    assert script.error == text
    assert len(script.look.warnings) == 1


def test_outside_of_microbatches_ranks_that_fail_alike_end_the_run_all_the_same() -> None:
    script = started()
    script.fail_in(1, microbatch=None)
    script.fail_in(2, microbatch=None)
    assert script.error.startswith("the training function fails alike on several ranks")

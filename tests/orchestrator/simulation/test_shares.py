"""A step as a fluid: what is done by when, and what a new share changes of it."""

from everstep.orchestrator.simulation.account import Saves
from everstep.orchestrator.simulation.shares import Share, Steady
from hypothesis import given
from hypothesis import strategies as st

# Four microbatches of two seconds, from the tenth second on.
SHARE = Share(frozenset(), (0, 1, 2, 3), 10.0, 2.0)


def test_what_is_done_by_when() -> None:
    assert [SHARE.computed(now) for now in (0.0, 10.0, 11.9, 12.0, 17.9, 18.0, 99.0)] == [0, 0, 0, 1, 3, 4, 4]
    assert SHARE.ends == 18.0
    assert SHARE.at(15.0) == Share(frozenset({0, 1}), (2, 3), 14.0, 2.0)


def test_more_goes_behind_what_is_under_way() -> None:
    assert SHARE.given((0, 1, 2, 3, 9), 15.0, None) == Share(frozenset({0, 1}), (2, 3, 9), 14.0, 2.0)


def test_whoever_is_done_begins_at_once_and_who_has_not_begun_does_not() -> None:
    assert SHARE.given((0, 1, 2, 3, 9), 20.0, None) == Share(frozenset({0, 1, 2, 3}), (9,), 20.0, 2.0)
    assert SHARE.given((0, 1, 2, 3, 9), 5.0, None).start == 10.0


def test_what_is_taken_away_is_not_computed() -> None:
    assert SHARE.given((0, 1, 3), 15.0, None) == Share(frozenset({0, 1}), (3,), 15.0, 2.0)


def test_a_shadow_that_is_let_go_begins_anew() -> None:
    assert SHARE.given((7, 5), 15.0, None) == Share(frozenset(), (5, 7), 15.0, 2.0)


def test_a_change_of_pace_keeps_what_is_done_of_a_microbatch() -> None:
    # Half of microbatch 2 is done; the other half takes three times as long.
    slower = SHARE.paced(6.0, 15.0)
    assert slower.ends == 15.0 + 3.0 + 6.0
    assert slower.paced(2.0, 15.0).ends == SHARE.ends
    assert SHARE.paced(6.0, 5.0).ends == 10.0 + 4 * 6.0


@given(
    st.integers(0, 50), st.integers(1, 20), st.integers(1, 20), st.floats(0, 3), st.floats(0.1, 9), st.integers(0, 500)
)
def test_a_step_is_found_by_its_time(
    first: int, every: int, more: int, stall: float, seconds: float, later: int
) -> None:
    steady = Steady(first, 100.0, seconds, [Saves("storage", every, stall), Saves("vault", every * more, stall / 2)])
    step = first + later
    assert steady.step_at(steady.begins(step)) == step
    assert steady.step_at(steady.commits(step) - seconds / 2) == step
    assert steady.step_at(0.0) == first
    assert steady.begins(step + 1) >= steady.commits(step) - 1e-9

"""What follows from an alarm is what the user has said, and never more than can be done."""

import pytest
from everstep.conf.remedy import OnInstability, Remedy
from everstep.policies.changes import Change
from everstep.policies.instability import Reaction, react
from hypothesis import given
from hypothesis import strategies as st

REMEDY = Remedy(skip_steps=3, learning_rate=0.5, switches={"attention": "math"}, times=2)
ON = st.sampled_from(OnInstability)
MADE = st.lists(st.integers(1, 9), max_size=4, unique=True).map(lambda held: [Change(one, 5 * one) for one in held])


@given(ON, st.one_of(st.none(), st.integers(1, 100)), st.integers(0, 9), MADE)
def test_nobody_goes_back_but_to_what_is_healthy_and_not_for_ever(
    on: OnInstability, healthy: int | None, known: int, made: list[Change]
) -> None:
    found = react(on, REMEDY, "an alarm", healthy, known, made)
    assert found.stop == (on is OnInstability.STOP)
    assert found.hold in (None, healthy)
    if found.change is None:
        return
    assert on is OnInstability.ROLLBACK
    assert found.change.step == healthy
    assert len(made) < REMEDY.times
    assert found.change.number > max((known, *(one.number for one in made)))


@pytest.mark.parametrize(
    ("on", "healthy", "made", "expected"),
    [
        ("observe", 40, (), Reaction("nothing: elastic.on_instability is observe")),
        ("hold", None, (), Reaction("nothing: no saved state is known to be healthy")),
        ("hold", 40, (), Reaction("the state after 40 steps, which was healthy, is kept", 40)),
        ("stop", 40, (), Reaction("the run stops, as elastic.on_instability says: an alarm", stop=True)),
        (
            "rollback",
            40,
            (Change(1, 9), Change(2, 12)),
            Reaction("nothing more: everybody went back 2 times already", 40),
        ),
    ],
)
def test_reactions(on: str, healthy: int | None, made: tuple[Change, ...], expected: Reaction) -> None:
    assert react(OnInstability(on), REMEDY, "an alarm", healthy, 0, made) == expected


def test_going_back() -> None:
    found = react(OnInstability.ROLLBACK, REMEDY, "an alarm", 40, 6, ())
    assert found.change == Change(7, 40, "an alarm", 3, 0.5, {"attention": "math"})
    assert found.reason == (
        "everybody goes back to the state after 40 steps; from step 40 on: the data of 3 steps is passed over, "
        "learning rates times 0.5, attention is math"
    )

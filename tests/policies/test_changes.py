"""What is different from a step on is a pure function of the step, whoever asks and whenever it was told."""

from everstep.policies.changes import Change, following, joined, learning_rate, skipped, switches
from hypothesis import given
from hypothesis import strategies as st

CHANGES = st.lists(
    st.builds(
        Change,
        number=st.integers(1, 5),
        step=st.integers(0, 20),
        skip_steps=st.integers(0, 4),
        learning_rate=st.sampled_from([0.5, 1.0, 0.1]),
        switches=st.dictionaries(st.sampled_from(["attention", "other"]), st.sampled_from(["a", "b"])),
    ),
    max_size=5,
    unique_by=lambda one: one.number,
).map(lambda held: tuple(sorted(held, key=lambda one: one.number)))


@given(CHANGES, st.integers(0, 5))
def test_those_that_are_saved_and_told_are_the_same_however_they_are_split(held: tuple[Change, ...], cut: int) -> None:
    assert joined(held[:cut], held[cut:]) == held
    assert joined(held, held) == held
    assert joined(held[cut:], held[:cut]) == held
    assert following(held) not in {one.number for one in held}


@given(CHANGES, st.integers(0, 20))
def test_nothing_is_different_before_its_step(held: tuple[Change, ...], step: int) -> None:
    now = [one for one in held if one.step <= step]
    assert learning_rate(held, step) == learning_rate(now, step)
    assert skipped(held, step) == tuple((one.step, one.skip_steps) for one in now if one.skip_steps)
    assert switches(held, step) == switches(now, step)
    early = min((one.step for one in held), default=0) - 1
    assert (learning_rate(held, early), skipped(held, early), switches(held, early)) == (1, (), {})


def test_several_go_together_and_the_last_switch_wins() -> None:
    held = (
        Change(1, 4, "", 2, 0.5, {"attention": "math", "other": "x"}),
        Change(2, 6, "", 1, 0.1, {"attention": "flash"}),
    )
    assert learning_rate(held, 6) == 0.05
    assert skipped(held, 9) == ((4, 2), (6, 1))
    assert switches(held, 5) == {"attention": "math", "other": "x"}
    assert switches(held, 6) == {"attention": "flash", "other": "x"}
    said = "from step 4 on: the data of 2 steps is passed over, learning rates times 0.5, attention is math, other is x"
    assert str(held[0]) == said

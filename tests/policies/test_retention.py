"""What may yet be gone back to stays, and nothing else does."""

from everstep.policies.retention import PINNED, Marks, staying
from hypothesis import given
from hypothesis import strategies as st

STEPS = st.sets(st.integers(1, 60), max_size=20)


def test_beside_the_newest_stay_what_is_right_and_what_is_not_judged_yet() -> None:
    saved = range(1, 21)
    assert staying(saved, 2, Marks()) == {19, 20}
    assert staying(saved, 2, Marks((8,))) == {8, 19, 20}
    assert staying((7, 10, 19, 20), 2, Marks((8,))) == {7, 19, 20}
    assert staying(saved, 2, Marks((), ((4, 8),))) == {12, 19, 20}
    # What is younger than all that is saved, or older, asks for nothing more.
    assert staying(saved, 1, Marks((0, 30), ((4, 20),))) == {20}
    # Where states are saved at other steps than they are judged, the last one before it counts.
    assert staying((3, 6, 9, 12, 15), 1, Marks((), ((8, 0),))) == {6, 15}
    assert staying((), 1, Marks((3,), ((4, 0),))) == set()


@given(STEPS, st.integers(1, 3), st.lists(st.integers(0, 60), max_size=4), st.integers(1, 9), st.integers(0, 60))
def test_no_more_than_that(saved: set[int], keep: int, marks: list[int], every: int, last: int) -> None:
    stay = staying(saved, keep, Marks(tuple(marks), ((every, last),)))
    assert stay <= saved
    assert len(stay) <= keep + len(marks) + 1
    assert set(sorted(saved)[-keep:]) <= stay
    for mark in marks:
        assert max((step for step in saved if step <= mark), default=None) in {None, *stay}


@given(st.integers(1, 5), st.integers(1, 8), st.integers(1, 40), st.integers(1, 3))
def test_something_is_verified_however_late_verdicts_come(every: int, saves: int, late: int, keep: int) -> None:
    """A state is saved every few steps, and what is judged is known only that many steps later."""
    held: frozenset[int] = frozenset()
    most = 0
    for step in range(1, 400):
        judged = max(0, step - late) // every * every
        verified, candidate = max(0, judged - every), judged
        marks = Marks(tuple(mark for mark in (verified, candidate) if mark), ((every, judged),))
        if step % saves == 0:
            held = staying({*held, step}, keep, marks)
            most = max(most, len(held))
    assert most <= keep + PINNED
    assert any(step <= verified for step in held), (sorted(held), verified)

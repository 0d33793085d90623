"""Calls that may never come back."""

import threading

import pytest
from everstep.actors.saved.patience import within

LONG, SHORT = 30.0, 0.05


def test_what_comes_back_in_time() -> None:
    tidied: list[int] = []
    assert within(LONG, lambda: 7, lambda: tidied.append(1)) == 7
    assert tidied == []


def test_what_fails_is_tidied_up_before_it_is_told() -> None:
    tidied: list[int] = []

    def fail() -> None:
        raise OSError("full")

    with pytest.raises(OSError, match="full"):
        within(LONG, fail, lambda: tidied.append(1))
    assert tidied == [1]


def test_a_time_out_of_the_call_itself_is_its_own() -> None:
    def fail() -> None:
        raise TimeoutError("of the call")

    with pytest.raises(TimeoutError, match="of the call"):
        within(LONG, fail)


def test_what_hangs_is_left_behind_and_tidied_up_when_it_comes_back() -> None:
    wake, tidied = threading.Event(), threading.Event()
    with pytest.raises(TimeoutError, match=r"it has not answered for 0\.05 s"):
        within(SHORT, lambda: wake.wait(LONG), tidied.set)
    assert not tidied.is_set()
    wake.set()
    assert tidied.wait(LONG)

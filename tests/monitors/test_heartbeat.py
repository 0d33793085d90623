"""Silence, and the watcher's own sleep."""

from everstep.monitors.heartbeat import Silence, forgive, silent


def test_only_those_older_than_the_timeout_the_most_silent_first() -> None:
    heard = {"a": 9.0, "b": 4.0, "c": 5.0, "d": 2.0, "e": 4.0}
    assert silent(heard, now=10.0, timeout=5.0) == (Silence("d", 8.0), Silence("b", 6.0), Silence("e", 6.0))


def test_nobody_and_nothing() -> None:
    assert silent({}, 10.0, 1.0) == ()
    assert silent({"a": 10.5}, 10.0, 0.1) == ()


def test_the_watchers_own_sleep_accuses_nobody() -> None:
    heard = {"a": 9.9, "b": 4.0}
    # Asleep from 10 to 30: the silence of those 20 seconds is nobody's, the one before it still counts.
    assert silent(heard, 30.0, 5.0) != ()
    assert silent(forgive(heard, 20.0), 30.0, 5.0) == (Silence("b", 6.0),)

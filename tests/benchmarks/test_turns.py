"""Only the side whose turn it is goes on, all of its ranks at once."""

import threading
import time

import pytest
from everstep.benchmarks.turns import Turn, Turns


def rank(address: tuple[str, int], side: str, log: list[str], blocks: int) -> None:
    turn = Turn(address, side, pid=1)
    for _ in range(blocks):
        turn.wait(sent={"Heartbeat": 1})
        log.append(side)
    turn.end(sent={"Heartbeat": 2})


def start(turns: Turns, side: str, log: list[str], blocks: int) -> threading.Thread:
    thread = threading.Thread(target=rank, args=(turns.address, side, log, blocks), daemon=True)
    thread.start()
    return thread


def test_sides_alternate_as_they_are_told() -> None:
    log: list[str] = []
    with Turns({"a": 2, "b": 1}) as turns:
        threads = [start(turns, side, log, blocks=2) for side in ("a", "a", "b")]
        while not turns.gather(seconds=1.0):
            pass
        turns.ready()
        assert log == []
        turns.go("a")
        assert log == ["a", "a"]
        turns.go("b")
        block = turns.go("b")
        assert log == ["a", "a", "b", "b"]
        assert block.facts[0]["sent"] == {"Heartbeat": 2}
        assert 0 <= block.seconds < 5
        turns.go("a")
        for thread in threads:
            thread.join(5.0)


def test_gathering_is_over_only_when_all_are_here() -> None:
    with Turns({"a": 2}) as turns:
        began = time.monotonic()
        assert not turns.gather(seconds=0.05)
        assert time.monotonic() - began < 5
        Turn(turns.address, "a", pid=1)
        assert not turns.gather(seconds=5.0)
        Turn(turns.address, "a", pid=2)
        assert turns.gather(seconds=5.0)
        assert turns.pids == [1, 2]


def test_a_rank_that_ends_is_an_error_and_not_a_hang() -> None:
    with Turns({"a": 1}) as turns:
        thread = start(turns, "a", [], blocks=0)
        assert turns.gather(seconds=5.0)
        turns.ready()
        thread.join(5.0)
        with pytest.raises(ConnectionError):
            turns.go("a")


def test_ranks_end_with_the_measurement() -> None:
    ended = threading.Event()

    def wait() -> None:
        with pytest.raises(SystemExit):
            turn.wait()
        ended.set()

    with Turns({"a": 1}) as turns:
        turn = Turn(turns.address, "a", pid=1)
        assert turns.gather(seconds=5.0)
        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        turns.ready()
    assert ended.wait(5.0)

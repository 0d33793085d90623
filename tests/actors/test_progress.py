"""What a rank is at can be read from outside: whole, of the right process, also when that one is stopped or gone."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest
from everstep.actors.node.observer import Observer
from everstep.actors.rank.progress import _END, Board, Watched, watch
from everstep.monitors.progress import Activity, Pending, ProgressRecord
from everstep.policies.world import Position
from hypothesis import given
from hypothesis import strategies as st

STEP = 2**40 + 7
# Is told what to do on its standard input, so nothing has to be waited for.
PROGRAM = f"""
import sys
from everstep.actors.rank.progress import Board
from everstep.monitors.progress import Activity
from everstep.policies.world import Position

board = Board()
board.stage = "training"
board.at(Position({STEP}, 2, 1))
board.doing(Activity.LOADING, 5)
assert not {{"torch", "ray", "numpy"}} & sys.modules.keys()
print("ready", flush=True)
for line in sys.stdin:
    board.doing(Activity.COMPUTING, int(line))
    print("done", flush=True)
"""


@pytest.fixture
def rank() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        pipe.close()


def still(record: ProgressRecord | None) -> ProgressRecord:
    """Without what time does to it."""
    assert record is not None
    assert 0 <= record.unchanged < 60
    return replace(record, unchanged=0.0)


PLACE = ProgressRecord(STEP, 2, 1, Activity.LOADING, "training", 5)


def test_another_process_is_seen(rank: subprocess.Popen[str]) -> None:
    assert rank.stdin is not None
    assert rank.stdout is not None
    board = watch(rank.pid)
    assert board is not None
    assert still(board.record("running")) == replace(PLACE, process="running")
    rank.stdin.write("6\n")
    rank.stdin.flush()
    assert rank.stdout.readline() == "done\n"
    assert still(board.record()) == replace(PLACE, activity=Activity.COMPUTING, microbatch=6)
    board.close()


def test_what_was_last_is_known_of_those_who_are_stopped_or_gone(rank: subprocess.Popen[str]) -> None:
    observer = Observer()
    observer.only({"a": rank.pid})
    os.kill(rank.pid, signal.SIGSTOP)
    assert still(observer.records({"a": "stopped"})["a"]) == replace(PLACE, process="stopped")
    rank.kill()
    rank.wait()
    assert still(observer.records({"a": "gone"})["a"]) == replace(PLACE, process="gone")
    observer.only({})
    assert observer.records({"a": "gone"}) == {}


def test_who_shows_nothing_is_left_out() -> None:
    observer = Observer()
    # The first has no such file, the second may not be looked at or is nobody, and of the third nothing was asked.
    observer.only({"parent": os.getppid(), "nobody": 2**22 - 1, "other": os.getpid()})
    assert observer.records({"parent": "sleeping", "nobody": "gone"}) == {}


@given(
    st.builds(Position, st.integers(0, 2**62), st.integers(0, 99), st.integers(0, 99)),
    st.sampled_from(Activity),
    st.none() | st.integers(0, 2**40),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30),
)
def test_whatever_it_is_at(position: Position, activity: Activity, microbatch: int | None, stage: str) -> None:
    board = Board()
    board.stage = stage
    board.at(position)
    if microbatch is None:
        board.doing(activity)
    else:
        board.doing(activity, microbatch)
    found = still(board.record())
    assert found.stage == stage.encode()[:80].decode(errors="ignore")
    assert board.stage == stage
    assert (found.step, found.unit, found.attempt) == (position.step, position.unit, position.attempt)
    assert (found.activity, found.microbatch, found.pending) == (activity, microbatch, None)
    board.at(position)
    assert still(board.record()) == replace(found, activity=Activity.OUTSIDE, microbatch=None)
    board.close()


def test_collectives_are_counted_in_their_group() -> None:
    board = Board()
    for kind in ("all-to-all", "all-reduce"):
        board.entered("1.3", kind, 2**33, "bfloat16")
    assert still(board.record()).pending is None, "it may leave while a backward is under way"
    board.doing(Activity.REDUCING)
    assert pending_of(board) == Pending("1.3", 2, "all-reduce", 2**33, "bfloat16")
    board.entered("1.4", "all-gather", 1, "float32")
    assert pending_of(board) == Pending("1.4", 1, "all-gather", 1, "float32")
    board.close()


def pending_of(board: Board) -> Pending:
    record = board.record()
    assert record is not None
    assert record.pending is not None
    return replace(record.pending, trail=0)


COLLECTIVES = st.lists(st.tuples(st.sampled_from(["all-to-all", "all-reduce"]), st.integers(1, 3)), min_size=1)


@given(COLLECTIVES, COLLECTIVES)
def test_a_trail_tells_whether_the_same_was_entered_in_the_same_order(
    mine: list[tuple[str, int]], theirs: list[tuple[str, int]]
) -> None:
    trails = []
    for entered in (mine, theirs):
        board = Board()
        # What was entered in another group does not count.
        board.entered("1.2", "all-gather", len(entered), "int64")
        board.doing(Activity.REDUCING)
        for kind, elements in entered:
            board.entered("1.3", kind, elements, "float32")
        record = board.record()
        assert record is not None
        assert record.pending is not None
        trails.append(record.pending.trail)
        board.close()
    assert (trails[0] == trails[1]) == (mine == theirs)


def test_a_change_is_a_sign_of_life() -> None:
    board = Board()

    def asleep() -> float:
        """As if nothing had changed since this machine started."""
        board._memory[8:_END] = bytes(_END - 8)
        found = board.record()
        assert found is not None
        return found.unchanged

    for change in (
        lambda: board.at(Position(1)),
        lambda: board.doing(Activity.LOADING, 1),
        lambda: board.entered("1.1", "all-reduce", 1, "int64"),
        lambda: setattr(board, "stage", "export"),
    ):
        before = asleep()
        change()
        found = board.record()
        assert found is not None
        assert found.unchanged < before
    board.close()


def test_what_is_half_written_is_not_read() -> None:
    board = Board()
    board.at(Position(3))
    # This process may have more of them.
    seen = Watched(board._memory)
    before = still(seen.record())
    board._counter[0] += 1
    board._memory[8:16] = bytes(8)
    assert board.record() is None
    assert still(seen.record()) == before
    board._counter[0] += 1
    assert still(seen.record()).step == 0
    board.close()

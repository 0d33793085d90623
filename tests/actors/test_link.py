"""A rank's way to controllers that come and go: whom it goes to, what it says first, and that it never waits."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from everstep.actors import wire
from everstep.actors.directory import FolderDirectory
from everstep.actors.link import Link
from everstep.actors.messages import Heartbeat, Hello, Ping, Release
from everstep.policies.world import Position

TOKEN = "ab" * 32
DEADLINE_S = 10.0
SILENCE_S = 0.4


class Controller:
    """Listens under a term of its own; reads what one rank says, unless it is deaf."""

    def __init__(self, directory: FolderDirectory, deaf: bool = False) -> None:
        self.term = directory.take()
        self.heard: list[Any] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self._deaf = deaf
        self.rank: socket.socket | None = None
        self.gone = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()
        directory.publish(self.term, self._server.getsockname())

    def say(self, message: object) -> None:
        until(lambda: self.rank is not None)
        assert self.rank is not None
        self.rank.sendall(wire.encode(message))

    def die(self) -> None:
        """Close everything, as the kernel does for a process that was killed."""
        self._server.close()
        if self.rank is not None:
            self.rank.shutdown(socket.SHUT_RDWR)
            self.rank.close()

    def _serve(self) -> None:
        try:
            self.rank, _ = self._server.accept()
            if self._deaf:
                return
            greeting = self.rank.recv(wire.GREETING_BYTES, socket.MSG_WAITALL)
            wire.check_greeting(greeting, TOKEN)
            while True:
                self.heard.append(wire.receive(self.rank))
        except (OSError, wire.WireError):
            self.gone.set()


class Rank:
    """A link, and what came to it."""

    def __init__(self, directory: FolderDirectory) -> None:
        self.heard: list[Any] = []
        self.introduced = 0
        self.before_introduction: Callable[[], None] = lambda: None
        self.link = Link(directory, TOKEN, self._introduce, self.heard.append, SILENCE_S)

    def _introduce(self) -> list[Hello]:
        self.introduced += 1
        self.before_introduction()
        return [Hello("a", self.introduced, "node")]


@pytest.fixture
def directory(tmp_path: Path) -> FolderDirectory:
    return FolderDirectory(str(tmp_path / "terms"))


@pytest.fixture
def rank(directory: FolderDirectory) -> Iterator[Rank]:
    rank = Rank(directory)
    yield rank
    rank.link.close()


def beat(step: int) -> Heartbeat:
    return Heartbeat("a", Position(step), "training")


def until(condition: Callable[[], object]) -> None:
    """Poll with a deadline: other threads make it true."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.002)


def test_it_introduces_itself_and_then_speaks(directory: FolderDirectory, rank: Rank) -> None:
    first = Controller(directory)
    rank.link.open(DEADLINE_S)
    rank.link.send(beat(1))
    first.say(Ping())
    until(lambda: len(first.heard) == 2 and rank.heard)
    assert first.heard == [Hello("a", 1, "node"), beat(1)]
    assert rank.heard == [Ping()]
    assert rank.link.host == "127.0.0.1"


def test_it_waits_for_the_first_controller_but_not_for_ever(directory: FolderDirectory, rank: Rank) -> None:
    with pytest.raises(TimeoutError, match=r"no controller of the run was found in 0\.1 s"):
        rank.link.open(0.1)
    threading.Timer(0.1, lambda: Controller(directory)).start()
    rank.link.open(DEADLINE_S)


def test_it_goes_to_the_next_controller_and_introduces_itself_anew(directory: FolderDirectory, rank: Rank) -> None:
    first = Controller(directory)
    rank.link.open(DEADLINE_S)
    until(lambda: first.heard)
    first.die()
    # Nobody listens: what is said now is lost, and saying it costs nothing.
    for step in range(100):
        rank.link.send(beat(step))
    second = Controller(directory)
    until(lambda: second.heard)
    rank.link.send(beat(7))
    second.say(Release())
    until(lambda: len(second.heard) == 2 and rank.heard)
    assert second.heard == [Hello("a", 2, "node"), beat(7)]
    assert rank.heard == [Release()]
    assert rank.link.term == 2


def test_what_is_said_while_it_introduces_itself_comes_after_that(directory: FolderDirectory, rank: Rank) -> None:
    """A promise that is made in that moment must not be lost."""
    first = Controller(directory)
    rank.before_introduction = lambda: rank.link.send(beat(3))
    rank.link.open(DEADLINE_S)
    until(lambda: len(first.heard) == 2)
    assert first.heard == [Hello("a", 1, "node"), beat(3)]


def test_a_stopped_controller_is_left_for_a_newer_one_and_not_before(directory: FolderDirectory, rank: Rank) -> None:
    stopped = Controller(directory)
    rank.link.open(DEADLINE_S)
    until(lambda: stopped.heard)
    time.sleep(1.5 * SILENCE_S)
    assert rank.introduced == 1, "nobody has taken over yet"
    newer = Controller(directory)
    until(lambda: newer.heard)
    assert stopped.gone.wait(DEADLINE_S)
    # It wakes up, too late.
    with contextlib.suppress(OSError):
        stopped.say(Release())
    assert rank.heard == []
    assert rank.link.term == 2


def test_it_never_goes_back_to_an_older_one(directory: FolderDirectory, rank: Rank, tmp_path: Path) -> None:
    older, newer = Controller(directory), Controller(directory)
    rank.link.open(DEADLINE_S)
    until(lambda: newer.heard)
    (tmp_path / "terms" / "2").unlink()
    newer.die()
    time.sleep(0.3)
    assert older.heard == []
    assert rank.introduced == 1


def test_it_comes_back_to_the_same_one_if_only_the_connection_broke(directory: FolderDirectory, rank: Rank) -> None:
    first = Controller(directory)
    rank.link.open(DEADLINE_S)
    until(lambda: first.heard)
    threading.Thread(target=first._serve, daemon=True).start()
    broken = first.rank
    assert broken is not None
    broken.shutdown(socket.SHUT_RDWR)
    until(lambda: first.heard[-1] == Hello("a", 2, "node"))


def test_a_controller_that_does_not_read_holds_nobody_up(directory: FolderDirectory, rank: Rank) -> None:
    Controller(directory, deaf=True)
    rank.link.open(DEADLINE_S)
    large = Hello("a", 1, "x" * 1_000_000)
    started = time.monotonic()
    for _ in range(64):
        rank.link.send(large)
    assert time.monotonic() - started < 2.0


def test_last_words_leave_before_it_is_closed(directory: FolderDirectory, rank: Rank) -> None:
    first = Controller(directory)
    rank.link.open(DEADLINE_S)
    words = Hello("a", 9, "x" * 30_000_000)
    rank.link.send(words)
    rank.link.close(patience=DEADLINE_S)
    assert first.gone.wait(DEADLINE_S)
    assert first.heard[-1] == words

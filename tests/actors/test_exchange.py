"""Bytes from whoever holds them: whole and what was promised, or an error in one line, and nothing counts as given."""

import inspect
import socket
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from everstep.actors import wire
from everstep.actors.exchange import Lender, fetch
from everstep.conf.errors import ExchangeError

TOKEN, HOST = "7" * 64, "127.0.0.1"
DATA = bytes(range(256)) * 40_000
CRC32 = zlib.crc32(DATA)


class Held:
    """A lender with one thing to give."""

    def __init__(self) -> None:
        self.given: list[object] = []
        self.halves: list[object] = []
        self.lender = Lender(HOST, TOKEN, self.lend, self.given.append, lambda *half: self.halves.append(half))

    @contextmanager
    def lend(self, name: object) -> Iterator[memoryview | None]:
        yield memoryview(DATA) if name == "data" else None

    def fetch(self, name: str = "data", count: int = len(DATA), crc32: int = CRC32, token: str = TOKEN) -> bytes:
        memory = bytearray(count)
        fetch(self.lender.address, token, name, "copy", memoryview(memory), crc32)
        return bytes(memory)


@pytest.fixture
def held() -> Iterator[Held]:
    made = Held()
    yield made
    made.lender.close()


def test_what_is_held_comes_whole_and_counts_as_given(held: Held) -> None:
    assert held.fetch() == DATA
    # The thanks may still be on their way: whoever comes next is served by another thread.
    while not held.given:
        pass
    assert held.given == ["data"]
    assert held.halves == [("data", "copy")]


def test_what_is_not_held(held: Held) -> None:
    with pytest.raises(ExchangeError, match="not held there any more"):
        held.fetch("other")


def test_another_size_is_refused(held: Held) -> None:
    with pytest.raises(ExchangeError, match="instead of 5"):
        held.fetch(count=5)


def test_other_bytes_are_refused_and_do_not_count_as_given(held: Held) -> None:
    with pytest.raises(ExchangeError, match="another one"):
        held.fetch(crc32=CRC32 ^ 1)
    assert held.fetch() == DATA
    while not held.given:
        pass
    assert len(held.given) == 1


def test_a_stranger_gets_nothing(held: Held) -> None:
    with pytest.raises(ExchangeError):
        held.fetch(token="8" * 64)
    assert held.given == []


def test_nobody_there() -> None:
    with socket.create_server((HOST, 0)) as server:
        address = server.getsockname()
    with pytest.raises(ExchangeError, match="refused"):
        fetch(address, TOKEN, "data", "copy", memoryview(bytearray(1)), CRC32)


def test_whoever_breaks_off_has_got_nothing(held: Held) -> None:
    with socket.create_connection(held.lender.address) as broken:
        broken.sendall(wire.greeting(TOKEN) + wire.encode(("data", "copy")))
        assert broken.recv(1000)
    assert held.fetch() == DATA
    while not held.given:
        pass
    assert held.given == ["data"]


def starved() -> None:
    """Run by another process: with no descriptor left the lender waits for one instead of asking again and again."""
    import itertools
    import os
    import resource
    import socket
    import threading
    import time
    import zlib
    from contextlib import contextmanager

    from everstep.actors import exchange

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))

    @contextmanager
    def lend(name):
        yield memoryview(b"data")

    lender = exchange.Lender("127.0.0.1", "7" * 64, lend)
    refusals, enough, accept = [], threading.Event(), lender._server.accept

    class Server:
        def accept(self):
            try:
                return accept()
            except TimeoutError:
                raise
            except OSError:
                refusals.append(time.monotonic())
                if len(refusals) == 4:
                    enough.set()
                raise

    client = socket.socket()
    taken = []
    try:
        while True:
            taken.append(os.dup(0))
    except OSError:
        pass
    lender._server = Server()
    client.connect(lender.address)
    assert enough.wait(60.0), refusals
    pauses = [later - earlier for earlier, later in itertools.pairwise(refusals)]
    assert min(pauses) >= exchange.BACK_OFF_S, pauses
    for descriptor in taken:
        os.close(descriptor)
    memory = bytearray(4)
    exchange.fetch(lender.address, "7" * 64, "any", "copy", memoryview(memory), zlib.crc32(b"data"))
    assert memory == b"data"


def test_without_a_descriptor_it_waits_for_one() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", f"{inspect.getsource(starved)}\nstarved()"],
        capture_output=True,
        text=True,
        timeout=120.0,
    )
    assert ended.returncode == 0, ended.stderr

"""The controller's end of the control connections: last words, strangers, breaks."""

import asyncio
import logging
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from everstep.actors import wire
from everstep.actors.messages import (
    PROTOCOL,
    FromRank,
    Heartbeat,
    Hello,
    Ping,
    Prepare,
    Raised,
    Release,
)
from everstep.orchestrator.listener import DriverHello, Listener
from everstep.orchestrator.machine.events import Ended, Event, Heard, StopRequested
from everstep.policies.world import Generation, Position

TOKEN = "ab" * 32
DEADLINE_S = 10.0


class Bench:
    """A listener and what it has told."""

    def __init__(self) -> None:
        self.listener = Listener("127.0.0.1", TOKEN)
        self.events: list[Event] = []
        self._address: tuple[str, int] = ("", 0)

    async def open(self) -> None:
        self._address = await self.listener.open(self.events.append)

    async def connect(self, greeting: bytes = b"") -> "Rank":
        reader, writer = await asyncio.open_connection(*self._address)
        writer.write(greeting or wire.greeting(TOKEN))
        return Rank(reader, writer)

    async def rank(self, name: str = "a") -> "Rank":
        """One that has said Hello."""
        rank = await self.connect()
        await rank.say(hello(name))
        await self.until(lambda: self.heard(name) != [])
        return rank

    async def until(self, what: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not what():
                await asyncio.sleep(0.005)

    def heard(self, name: str) -> list[object]:
        return [event.message for event in self.events if isinstance(event, Heard) and event.incarnation == name]

    def ended(self, name: str) -> list[str]:
        return [event.cause for event in self.events if isinstance(event, Ended) and event.incarnation == name]


class Rank:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def say(self, *messages: FromRank | object) -> None:
        self.writer.write(b"".join(map(wire.encode, messages)))
        await self.writer.drain()

    async def hear(self) -> Any:
        async with asyncio.timeout(DEADLINE_S):
            header = await self.reader.readexactly(wire.HEADER_BYTES)
            return wire.decode(await self.reader.readexactly(wire.body_length(header)))

    async def dropped(self) -> bool:
        """Whether the other side has closed the connection."""
        async with asyncio.timeout(DEADLINE_S):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True


def hello(name: str) -> Hello:
    return Hello(name, 7, "node")


def beat(name: str, step: int) -> Heartbeat:
    return Heartbeat(name, Position(step), "training")


def play(scenario: Callable[[Bench], Awaitable[None]]) -> Bench:
    """Run a scenario on a listener that is closed in the end."""
    bench = Bench()

    async def run() -> None:
        await bench.open()
        try:
            await asyncio.wait_for(scenario(bench), 3 * DEADLINE_S)
        finally:
            await bench.listener.close()

    asyncio.run(run())
    return bench


def test_messages_are_heard_in_order_under_the_name_of_the_connection() -> None:
    async def scenario(bench: Bench) -> None:
        rank = await bench.rank("a")
        # What a message says of its sender does not count.
        await rank.say(*(beat("somebody else", step) for step in range(50)))
        await bench.until(lambda: len(bench.heard("a")) == 51)
        steps = [message.position.step for message in bench.heard("a")[1:]]  # type: ignore[attr-defined]
        assert steps == list(range(50))

    assert play(scenario).heard("somebody else") == []


def test_a_frame_may_come_in_pieces_and_several_in_one() -> None:
    async def scenario(bench: Bench) -> None:
        _, writer = await asyncio.open_connection(*bench._address)
        data = wire.greeting(TOKEN) + b"".join(map(wire.encode, (hello("a"), beat("a", 1), beat("a", 2))))
        for start in range(0, len(data), 11):
            writer.write(data[start : start + 11])
            await writer.drain()
            await asyncio.sleep(0)
        await bench.until(lambda: len(bench.heard("a")) == 3)

    play(scenario)


def test_messages_go_to_the_rank_that_they_are_for() -> None:
    async def scenario(bench: Bench) -> None:
        first, second = await bench.rank("a"), await bench.rank("b")
        bench.listener.send("b", Prepare(Generation(1, 2)))
        bench.listener.send("a", Ping())
        bench.listener.send("a", Release())
        bench.listener.send("nobody", Ping())
        assert [await first.hear(), await first.hear()] == [Ping(), Release()]
        assert await second.hear() == Prepare(Generation(1, 2))

    play(scenario)


def test_last_words_are_heard_before_the_end() -> None:
    """A rank says why and is gone at once; however much it said, nothing of it is lost."""
    words = Raised("a", Position(3), 1, (5,), "E at x:1", "bad", "x" * 300_000)

    async def scenario(bench: Bench) -> None:
        rank = await bench.rank("a")
        await rank.say(*(beat("a", step) for step in range(20)), words)
        rank.writer.transport.close()
        await bench.until(lambda: bench.ended("a") != [])

    bench = play(scenario)
    assert bench.events[-2] == Heard("a", words)
    assert bench.ended("a") == ["its process is gone (its connection ended)"]
    assert len(bench.heard("a")) == 22


def test_an_end_that_is_heard_of_otherwise_waits_for_last_words() -> None:
    words = Raised("a", Position(3), 1, (5,), "E at x:1", "bad", "trace")

    async def scenario(bench: Bench) -> None:
        rank = await bench.rank("a")
        reporting = asyncio.create_task(bench.listener.report_end("a", "signal 9", patience=DEADLINE_S))
        await asyncio.sleep(0.05)
        assert bench.ended("a") == []
        await rank.say(words)
        rank.writer.close()
        await reporting

    bench = play(scenario)
    assert bench.heard("a")[-1] == words
    assert bench.ended("a") == ["its process is gone (its connection ended)", "signal 9"]
    assert bench.events.index(Heard("a", words)) < bench.events.index(Ended("a", bench.ended("a")[0]))


def test_an_end_is_told_of_after_the_patience_although_the_connection_lives() -> None:
    """The node is lost: nothing will ever close the connection."""

    async def scenario(bench: Bench) -> None:
        rank = await bench.rank("a")
        await bench.listener.report_end("a", "its node is lost", patience=0.05)
        assert bench.ended("a") == ["its node is lost"]
        rank.writer.close()

    play(scenario)


def test_the_end_of_a_rank_that_never_connected_is_told_at_once() -> None:
    async def scenario(bench: Bench) -> None:
        async with asyncio.timeout(1.0):
            await bench.listener.report_end("a", "no room for it", patience=DEADLINE_S)

    assert play(scenario).ended("a") == ["no room for it"]


@pytest.mark.parametrize(
    "words",
    [
        wire.greeting("cd" * 32),
        b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: curl\r\nAccept: */*\r\n\r\n".ljust(wire.GREETING_BYTES),
        struct.pack("!4sI64s", b"EVST", PROTOCOL + 1, TOKEN.encode()),
    ],
)
def test_a_stranger_or_another_version_is_dropped_unheard(words: bytes) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return (print, ("a stranger's pickle was read",))

    async def scenario(bench: Bench) -> None:
        friend = await bench.rank("friend")
        stranger = await bench.connect(words)
        stranger.writer.write(wire.encode(Trap()) + wire.encode(hello("stranger")))
        assert await stranger.dropped()
        await friend.say(beat("friend", 1))
        await bench.until(lambda: len(bench.heard("friend")) == 2)

    bench = play(scenario)
    assert bench.heard("stranger") == []
    assert bench.ended("stranger") == []


def test_a_stranger_who_says_nothing_holds_nobody_up() -> None:
    async def scenario(bench: Bench) -> None:
        await asyncio.open_connection(*bench._address)
        await bench.connect(b"EVST")
        await bench.rank("a")

    play(scenario)


@pytest.mark.parametrize(
    "frame", [struct.pack("!I", wire.MAX_FRAME_BYTES + 1) + b"x", struct.pack("!I", 9) + b"no pickle"]
)
def test_a_rank_that_talks_nonsense_is_gone_and_the_others_are_not(
    frame: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL + 1, "asyncio")

    async def scenario(bench: Bench) -> None:
        friend, rank = await bench.rank("friend"), await bench.rank("a")
        rank.writer.write(frame)
        assert await rank.dropped()
        await bench.until(lambda: bench.ended("a") != [])
        await friend.say(beat("friend", 1))
        await bench.until(lambda: len(bench.heard("friend")) == 2)
        assert bench.ended("friend") == []

    play(scenario)


def test_nothing_is_heard_before_hello() -> None:
    async def scenario(bench: Bench) -> None:
        rank = await bench.connect()
        await rank.say(beat("a", 1), hello("a"), beat("a", 2))
        await bench.until(lambda: len(bench.heard("a")) == 2)

    assert play(scenario).heard("a") == [hello("a"), beat("a", 2)]


def test_the_end_of_an_old_connection_is_not_the_end_of_who_has_a_new_one() -> None:
    async def scenario(bench: Bench) -> None:
        old, new = await bench.rank("a"), await bench.connect()
        await new.say(hello("a"))
        await bench.until(lambda: len(bench.heard("a")) == 2)
        old.writer.close()
        await new.say(beat("a", 1))
        await bench.until(lambda: len(bench.heard("a")) == 3)
        await asyncio.sleep(0.05)
        assert bench.ended("a") == []
        bench.listener.send("a", Ping())
        assert await new.hear() == Ping()

    play(scenario)


def test_a_message_to_a_rank_that_is_gone_is_lost() -> None:
    async def scenario(bench: Bench) -> None:
        rank = await bench.rank("a")
        rank.writer.transport.abort()
        bench.listener.send("a", Ping())
        await bench.until(lambda: bench.ended("a") != [])
        bench.listener.send("a", Ping())

    play(scenario)


def test_a_rank_that_does_not_read_holds_nobody_up() -> None:
    """It is stopped: what it is sent piles up here, and the others are still served."""

    async def scenario(bench: Bench) -> None:
        await bench.rank("stopped")
        other = await bench.rank("other")
        async with asyncio.timeout(5.0):
            for _ in range(5000):
                bench.listener.send("stopped", Prepare(Generation(1, 2)))
            bench.listener.send("other", Ping())
            assert await other.hear() == Ping()

    play(scenario)


def test_the_end_of_the_driver_asks_for_a_stop() -> None:
    async def scenario(bench: Bench) -> None:
        driver = await bench.connect()
        await driver.say(DriverHello())
        await bench.until(lambda: bench.listener.tied)
        assert bench.events == []
        driver.writer.close()
        await bench.until(lambda: bench.events != [])

    assert play(scenario).events == [StopRequested("its driver is gone")]


def test_the_end_of_the_run_is_not_the_end_of_the_driver() -> None:
    async def scenario(bench: Bench) -> None:
        driver = await bench.connect()
        await driver.say(DriverHello())
        await bench.until(lambda: bench.listener.tied)
        await bench.listener.close()
        driver.writer.close()
        await asyncio.sleep(0.05)

    assert play(scenario).events == []


def test_closing_drops_every_connection_and_takes_no_new_one() -> None:
    async def scenario(bench: Bench) -> None:
        rank = await bench.rank("a")
        await bench.listener.close()
        assert await rank.dropped()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*bench._address)

    play(scenario)

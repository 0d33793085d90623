"""Greeting and frames of a control connection."""

import pickle
import socket
import struct
import threading

import pytest
from everstep.actors import wire
from everstep.actors.messages import PROTOCOL, Heartbeat, Ping, Prepare, StepRecord
from everstep.policies.world import Generation, Position

TOKEN = "0123456789abcdef" * 4


def test_a_greeting_with_the_runs_token_is_taken() -> None:
    greeting = wire.greeting(TOKEN)
    assert len(greeting) == wire.GREETING_BYTES
    wire.check_greeting(greeting, TOKEN)


@pytest.mark.parametrize(
    "words",
    [
        wire.greeting(TOKEN.replace("0", "1")),
        wire.greeting(TOKEN)[:-1] + b"g",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n".ljust(wire.GREETING_BYTES, b" "),
        bytes(wire.GREETING_BYTES),
    ],
)
def test_a_stranger_is_refused(words: bytes) -> None:
    with pytest.raises(wire.WireError, match="without the run's token"):
        wire.check_greeting(words, TOKEN)


def test_another_version_names_both() -> None:
    old = struct.pack("!4sI64s", b"EVST", PROTOCOL + 6, TOKEN.encode())
    with pytest.raises(wire.WireError, match=f"speaks control protocol {PROTOCOL + 6}, the controller {PROTOCOL}"):
        wire.check_greeting(old, TOKEN)


def test_a_stranger_does_not_learn_the_version() -> None:
    old = struct.pack("!4sI64s", b"EVST", PROTOCOL + 6, b"x" * 64)
    with pytest.raises(wire.WireError, match="without the run's token"):
        wire.check_greeting(old, TOKEN)


def test_messages_come_out_as_they_went_in() -> None:
    record = StepRecord(2, 0.1 + 0.2, 7.0, 0.5, {"SGD": 0.1}, {"accuracy": 0.25}, None, 4, 2, 1e9)
    messages = [
        Ping(2, True),
        Prepare(Generation(1, 2)),
        Heartbeat("a", Position(3, attempt=1), "training", 9, 2, (record,)),
    ]
    left, right = socket.socketpair()
    with left, right:
        left.sendall(b"".join(map(wire.encode, messages)))
        assert [wire.receive(right) for _ in messages] == messages


def test_a_frame_may_arrive_in_pieces() -> None:
    message = Heartbeat("a", Position(3), "x" * 100_000)
    left, right = socket.socketpair()

    def dribble() -> None:
        frame = wire.encode(message)
        for start in range(0, len(frame), 7001):
            left.sendall(frame[start : start + 7001])

    with left, right:
        thread = threading.Thread(target=dribble)
        thread.start()
        assert wire.receive(right) == message
        thread.join()


@pytest.mark.parametrize("part", [b"", b"\0\0", struct.pack("!I", 9) + b"half"])
def test_a_connection_that_ends_within_a_frame_is_an_error(part: bytes) -> None:
    left, right = socket.socketpair()
    with right:
        left.sendall(part)
        left.close()
        with pytest.raises(wire.WireError, match="ended"):
            wire.receive(right)


def test_a_broken_connection_is_an_error_of_the_wire() -> None:
    left, right = socket.socketpair()
    left.close()
    right.close()
    with pytest.raises(wire.WireError, match="broke"):
        wire.receive(right)


def test_an_absurd_length_is_refused_before_anything_is_read() -> None:
    left, right = socket.socketpair()
    with left, right:
        left.sendall(struct.pack("!I", wire.MAX_FRAME_BYTES + 1))
        with pytest.raises(wire.WireError, match=f"a frame of {wire.MAX_FRAME_BYTES + 1} bytes was refused"):
            wire.receive(right)
    assert wire.body_length(struct.pack("!I", wire.MAX_FRAME_BYTES)) == wire.MAX_FRAME_BYTES


def test_a_frame_is_a_length_and_a_pickle() -> None:
    frame = wire.encode(Ping())
    assert wire.body_length(frame[: wire.HEADER_BYTES]) == len(frame) - wire.HEADER_BYTES
    assert pickle.loads(frame[wire.HEADER_BYTES :]) == Ping()

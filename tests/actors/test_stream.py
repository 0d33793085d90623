"""Nested values with tensors through a socket: whole and to the bit, or not at all."""

import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from everstep.actors.rank import stream
from everstep.conf.errors import HandoverError
from torch import nn


def pair(worthwhile: Callable[[], bool] = lambda: True) -> tuple[stream.Channel, stream.Channel, socket.socket]:
    one, two = socket.socketpair()
    return stream.Channel(one, worthwhile), stream.Channel(two, worthwhile), one


def passed(value: Any) -> Any:
    """What arrives of it."""
    giver, taker, _ = pair()

    def give() -> None:
        giver.send(stream.send(giver, value))

    thread = threading.Thread(target=give)
    thread.start()
    held = stream.receive(taker)
    thread.join(10.0)
    return held


def test_every_kind_of_tensor_arrives_to_the_bit() -> None:
    torch.manual_seed(3)
    tensors = {
        "float": torch.randn(300, 700),
        "bf16": torch.randn(5).to(torch.bfloat16),
        "double": torch.randn(2, 3, dtype=torch.float64),
        "bool": torch.tensor([True, False]),
        "whole": torch.arange(7),
        "scalar": torch.tensor(0.5),
        "empty": torch.empty(0, 3),
        "nan": torch.tensor([float("nan"), -0.0]),
        "strided": torch.randn(4, 6).t()[::2],
        "complex": torch.randn(3, dtype=torch.complex64),
        "parameter": nn.Parameter(torch.randn(2)),
    }
    held = passed(tensors)
    assert list(held) == list(tensors)
    for name, tensor in tensors.items():
        assert held[name].dtype is tensor.dtype, name
        assert held[name].shape == tensor.shape, name
        bits = [each.detach().contiguous().reshape(-1).view(torch.uint8) for each in (held[name], tensor)]
        assert torch.equal(*bits), name


def test_structure_survives_and_what_is_shared_is_sent_once() -> None:
    shared = torch.randn(100_000)
    value = {"a": [shared, (shared, {"b": shared.detach()})], "c": None, 3: "text", "d": 1.5, "other": shared[:5]}
    held = passed(value)
    assert held["a"][0] is held["a"][1][0] is held["a"][1][1]["b"]
    assert torch.equal(held["other"], shared[:5])
    assert (held["c"], held[3], held["d"]) == (None, "text", 1.5)


class OfTheUser:
    """Not importable where it arrives."""

    def __init__(self) -> None:
        self.weight = torch.ones(3)


def test_a_users_own_object_goes_along() -> None:
    assert torch.equal(passed({"ema": OfTheUser()})["ema"].weight, torch.ones(3))


def test_another_digest_is_refused() -> None:
    giver, taker, _ = pair()

    def give() -> None:
        digest = bytearray(stream.send(giver, torch.ones(3)))
        digest[0] ^= 1
        giver.send(bytes(digest))

    threading.Thread(target=give).start()
    with pytest.raises(HandoverError, match="another SHA-256"):
        stream.receive(taker)


def test_a_connection_that_ends_before_the_digest_is_refused() -> None:
    giver, taker, connection = pair()

    def give() -> None:
        stream.send(giver, torch.ones(3))
        connection.close()

    threading.Thread(target=give).start()
    with pytest.raises(HandoverError, match="ended before the state was whole"):
        stream.receive(taker)


def test_nobody_waits_for_what_is_not_worth_it() -> None:
    giver, taker, _ = pair(lambda: False)
    with pytest.raises(HandoverError, match="given up"):
        taker.receive(1)
    with pytest.raises(HandoverError, match="given up"):
        # More than the sockets hold, and nobody reads.
        giver.send(bytes(50_000_000))


def test_half_way_is_told_on_both_sides() -> None:
    giver, taker, _ = pair()
    told: list[str] = []
    value = [torch.ones(10), torch.ones(20)]
    thread = threading.Thread(target=lambda: giver.send(stream.send(giver, value, told.append)))
    thread.start()
    stream.receive(taker, told.append)
    thread.join(10.0)
    assert sorted(told) == ["40 of 120 bytes have come", "40 of 120 bytes have passed"]

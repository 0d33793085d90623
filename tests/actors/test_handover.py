"""A member serves the state before the position that it has come to, and nothing else reaches the newcomer."""

import gc
import socket
import threading
import time
import weakref
from typing import Any

import pytest
import torch
from everstep.actors import wire
from everstep.actors.messages import FromRank, Open, Prepare, StoreAddress
from everstep.actors.rank.handover import Handover
from everstep.actors.rank.ledger import Ledger
from everstep.actors.rank.rendezvous import StoreClients
from everstep.actors.rank.transaction import Verdict
from everstep.conf.elastic import Timeouts
from everstep.conf.errors import HandoverError
from everstep.orchestrator.store import open_store
from everstep.policies.workload import Balanced
from everstep.policies.world import Generation, Member, Position, Seat, Work, WorkKind, World
from torch._C._distributed_c10d import PrefixStore, TCPStore

from .small_model import CALM

HOST, TOKEN = "127.0.0.1", "a" * 64
WORK = Work(WorkKind.TRAINING, 4)
PLACE = Position(0)
QUICK = Timeouts(heartbeat_interval=0.05, heartbeat=0.15, probe=0.1, node=0.2, collective=0.3, build=0.5, recovery=3.0)


class NoGroups:
    """Nobody reduces here."""

    def open(self, message: Open) -> None:
        pass

    def interrupt(self, generation: Generation) -> None:
        pass


class Side:
    """One rank, as far as a handover needs it."""

    def __init__(self, name: str, state: Any = None, token: str = TOKEN, timeouts: Timeouts = QUICK) -> None:
        self.said: list[FromRank] = []
        self.ledger = Ledger(name, self.said.append, NoGroups(), Balanced())  # type: ignore[arg-type]
        self.reads = 0
        self.state = state
        self.handover = Handover(self.ledger, StoreClients(5.0), HOST, token, timeouts, CALM, self.read)

    def read(self) -> Any:
        self.reads += 1
        return self.state

    def open(self, message: Open) -> None:
        if self.ledger.open(message):
            self.handover.open(message)

    def take(self, number: int = 2, seconds: float = 3.0) -> Any:
        return self.handover.take(Generation(1, number), time.monotonic() + seconds)


@pytest.fixture
def store() -> tuple[Any, int]:
    return open_store(HOST)


def opening(port: int, number: int = 2, work: Work | None = WORK) -> Open:
    members = (Member("source", Seat(0)), Member("newcomer", Seat(1)))
    world = World(Generation(1, number), members)
    address = StoreAddress(HOST, port, f"run/{number}")
    indices = {"source": (0, 1), "newcomer": (2, 3)}
    return Open(world, PLACE, indices, address, work, sources={"newcomer": "source"})


def source_at_work(port: int, state: Any, **options: Any) -> Side:
    """A member of a world of its own that is at the place already."""
    side = Side("source", state, **options)
    world = World(Generation(1, 1), (Member("source", Seat(0)),))
    side.open(Open(world, PLACE, {}, StoreAddress(HOST, port, "run/1")))
    side.ledger.take_up(PLACE, WORK, 1.0)
    side.ledger.prepare(Prepare(Generation(1, 2)))
    return side


def test_the_state_arrives_and_is_obtained(store: tuple[Any, int]) -> None:
    source, newcomer = source_at_work(store[1], {"weight": torch.arange(5.0)}), Side("newcomer")
    message = opening(store[1])
    newcomer.open(message)
    source.open(message)
    held = newcomer.take()
    assert torch.equal(held["weight"], torch.arange(5.0))
    assert newcomer.ledger.transaction.lacks
    assert newcomer.ledger.obtain(newcomer.ledger.transaction.beginning)
    assert newcomer.ledger.take_up(PLACE, WORK, 1.0).indices == (2, 3)


def test_it_is_read_only_when_training_has_come_to_its_place(store: tuple[Any, int]) -> None:
    """Before that, the source may still be changing its weights."""
    source, newcomer = Side("source", "later"), Side("newcomer")
    message = opening(store[1])
    source.open(message)
    newcomer.open(message)
    time.sleep(0.3)
    assert source.reads == 0
    source.ledger.take_up(PLACE, WORK, 1.0)
    assert newcomer.take() == "later"


def test_what_was_decided_meanwhile_is_not_called_whole(store: tuple[Any, int]) -> None:
    source, newcomer = source_at_work(store[1], None), Side("newcomer")
    generation = Generation(1, 2)

    def decide() -> str:
        for index in (0, 1):
            source.ledger.fold(PLACE, index)
        source.ledger.enter(PLACE, generation)
        source.ledger.decide(PLACE, generation, Verdict.COMMIT)
        return "torn"

    source.read = decide  # type: ignore[method-assign]
    source.handover = Handover(source.ledger, StoreClients(5.0), HOST, TOKEN, QUICK, CALM, decide)
    message = opening(store[1])
    source.open(message)
    newcomer.open(message)
    with pytest.raises(HandoverError, match="could not be taken from rank source: the connection ended"):
        newcomer.take()


def test_another_generation_ends_the_wait(store: tuple[Any, int]) -> None:
    newcomer = Side("newcomer")
    newcomer.open(opening(store[1]))
    newcomer.ledger.prepare(Prepare(Generation(1, 3)))
    assert newcomer.take() is None
    (report,) = newcomer.said
    assert report.lacks  # type: ignore[union-attr]
    # What comes now would be of the old one.
    assert not newcomer.ledger.obtain(newcomer.ledger.transaction.beginning)
    source = source_at_work(store[1], "newer")
    source.ledger.prepare(Prepare(Generation(1, 3)))
    message = opening(store[1], number=3)
    source.open(message)
    newcomer.open(message)
    assert newcomer.take(3) == "newer"


def test_a_source_that_never_serves_is_given_up(store: tuple[Any, int]) -> None:
    newcomer = Side("newcomer")
    newcomer.open(opening(store[1]))
    with pytest.raises(HandoverError, match="the state did not come within 3 s"):
        newcomer.take(seconds=0.2)


def test_nothing_is_taken_from_or_given_to_a_stranger(store: tuple[Any, int]) -> None:
    message = opening(store[1])
    source, newcomer = source_at_work(store[1], "state", token="b" * 64), Side("newcomer")
    source.open(message)
    newcomer.open(message)
    with pytest.raises(HandoverError, match="could not be taken from rank source"):
        newcomer.take()
    assert source.reads == 0
    # The source hangs up on whoever asks for anything else, and goes on to listen.
    place = PrefixStore("run/2", TCPStore(HOST, store[1], is_master=False, wait_for_workers=False))
    host, port = place.get("handover/newcomer").decode().split()
    with socket.create_connection((host, int(port)), timeout=5.0) as connection:
        connection.sendall(wire.greeting("b" * 64) + wire.encode((Generation(1, 1), PLACE)))
        assert connection.recv(1) == b""
    assert source.reads == 0


def test_the_newcomer_hears_why_a_state_cannot_be_sent(store: tuple[Any, int]) -> None:
    source, newcomer = source_at_work(store[1], {"lock": threading.Lock()}), Side("newcomer")
    message = opening(store[1])
    source.open(message)
    newcomer.open(message)
    with pytest.raises(HandoverError, match="from rank source: it cannot be sent: TypeError: cannot pickle"):
        newcomer.take(seconds=0.2)


def test_a_state_that_was_taken_is_not_kept(store: tuple[Any, int]) -> None:
    source, newcomer = source_at_work(store[1], {"weight": torch.ones(3)}), Side("newcomer")
    message = opening(store[1])
    source.open(message)
    newcomer.open(message)
    weight = weakref.ref(newcomer.take()["weight"])
    gc.collect()
    assert weight() is None

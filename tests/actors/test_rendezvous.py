"""Connections to the store: used again after a meeting, and ready before they are needed."""

import threading
import time
from collections.abc import Callable

import pytest
from everstep.actors.rank.rendezvous import StoreClients
from everstep.orchestrator.store import open_store
from torch._C._distributed_c10d import TCPStore

HOST = "127.0.0.1"


class Counted(StoreClients):
    """Tells how many connections were made, and by whom."""

    def __init__(self) -> None:
        super().__init__(10.0)
        self.made: list[str] = []

    def _connect(self, host: str, port: int) -> TCPStore:
        self.made.append(threading.current_thread().name)
        return super()._connect(host, port)

    def await_ready(self, count: int) -> None:
        deadline = time.monotonic() + 20.0
        while len(self._ready) < count:
            assert time.monotonic() < deadline, "nothing is connected"
            time.sleep(0.001)


@pytest.fixture
def opened() -> Callable[[], int]:
    """Opens stores; returns their ports."""
    held = []

    def open_another() -> int:
        store, port = open_store(HOST)
        held.append(store)
        return port

    return open_another


def test_a_meeting_uses_the_connection_of_the_one_before(opened: Callable[[], int]) -> None:
    clients, port = Counted(), opened()
    with clients.lent(HOST, port) as first:
        first.set("key", "value")
    clients.await_ready(2)
    mine = threading.current_thread().name
    for _ in range(5):
        with clients.lent(HOST, port) as client:
            assert client.get("key") == b"value"
    assert clients.made == [mine, "everstep-store"]


def test_a_meeting_that_waits_leaves_one_for_the_next(opened: Callable[[], int]) -> None:
    clients, port = Counted(), opened()
    for _ in range(5):
        clients.prepare(HOST, port)
    clients.await_ready(2)
    with clients.lent(HOST, port) as waiting, clients.lent(HOST, port) as other:
        assert waiting is not other
    assert clients.made == ["everstep-store"] * 2


def test_what_has_failed_is_not_used_again(opened: Callable[[], int]) -> None:
    clients, port = Counted(), opened()
    with pytest.raises(RuntimeError, match="a peer did not come"), clients.lent(HOST, port) as broken:
        raise RuntimeError("a peer did not come")
    clients.await_ready(1)
    with clients.lent(HOST, port) as client:
        assert client is not broken


def test_another_controller_has_another_store(opened: Callable[[], int]) -> None:
    clients, old, new = Counted(), opened(), opened()
    with clients.lent(HOST, old) as client:
        client.set("key", "old")
        with clients.lent(HOST, new) as other:
            other.set("key", "new")
    clients.await_ready(2)
    for _ in range(3):
        with clients.lent(HOST, new) as client:
            assert client.get("key") == b"new"


def test_a_store_that_is_gone_is_told_to_whoever_needs_it(opened: Callable[[], int]) -> None:
    clients = StoreClients(0.2)
    clients.prepare(HOST, 1)
    with pytest.raises(RuntimeError), clients.lent(HOST, 1):
        pass
    for thread in threading.enumerate():
        if thread.name == "everstep-store":
            thread.join(20.0)
    assert clients._ready == []

"""Snapshots that vaults come and get while training goes on: each is the state of one step, and nobody waits."""

import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

import torch
from everstep.actors import exchange
from everstep.actors.faults import Chaos
from everstep.actors.node.vault_messages import COPY, Copies, Offered, PartName, Withdraw
from everstep.actors.rank.census import Wish
from everstep.actors.rank.restore import read_from_vaults
from everstep.actors.rank.snapshots import Saved, Share, Snapshots
from everstep.actors.rank.to_vaults import ToVaults
from everstep.policies.world import Generation, Member, Seat, World

TOKEN, HOST = "7" * 64, "127.0.0.1"
RANKS, SNAPSHOTS = 2, 15
WORLD = World(Generation(1, 1), tuple(Member(f"r{place}", Seat(place)) for place in range(RANKS)))


class Training:
    """One rank: tensors that are full of the number of steps taken."""

    def __init__(self, place: int, offered: "SimpleQueue[Offered]") -> None:
        self.tensors = [torch.zeros(20_000) for _ in range(5)]
        self.delivery = ToVaults(f"r{place}", TOKEN, lambda: HOST, offered.put)
        chaos = Chaos((), None, lambda fault, evidence: None)
        self.snapshots = Snapshots(f"r{place}", self.delivery, 1, torch.device("cpu"), chaos, ends=False)

    def step(self, number: int, full: bool) -> None:
        self.snapshots.settle()
        for tensor in self.tensors:
            tensor.fill_(number)
        if self.snapshots.due(number, False, WORLD, Wish(full)):
            self.snapshots.take(number, WORLD, lambda: Saved(number, list(self.tensors), 0.0, {}))  # type: ignore[arg-type]


def hoard(offered: "SimpleQueue[Offered]", over: threading.Event) -> dict[int, dict[int, Copies]]:
    """Take everything that is offered, and have it to give again."""
    held: dict[PartName, bytes] = {}

    class Lent:
        def __init__(self, name: PartName) -> None:
            self.name = name

        def __enter__(self) -> memoryview:
            return memoryview(held[self.name])

        def __exit__(self, *what: object) -> None:
            pass

    lender = exchange.Lender(HOST, TOKEN, Lent)
    found: dict[int, dict[int, Copies]] = {}
    while not (over.is_set() and offered.empty()):
        try:
            message = offered.get(timeout=0.05)
        except Empty:
            continue
        assert not message.problem
        part, memory = message.part, bytearray(message.part.bytes)
        exchange.fetch(message.address, TOKEN, part.name, COPY, memoryview(memory), part.crc32)
        held[part.name] = bytes(memory)
        found.setdefault(part.name.step, {})[part.name.part] = Copies(part, (lender.address,))
    return found


def wait_until(condition: Callable[[], bool]) -> None:
    """Poll with a deadline: the condition lies in other threads."""
    deadline = time.monotonic() + 30.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_no_snapshot_mixes_two_steps_however_fast_training_is() -> None:
    """A hammer: steps take no time at all, so copies, transfers and writes to the state meet all the time."""
    offered: SimpleQueue[Offered] = SimpleQueue()
    over, found = threading.Event(), dict[int, dict[int, Copies]]()
    vault = threading.Thread(target=lambda: found.update(hoard(offered, over)))
    vault.start()
    ranks = [Training(place, offered) for place in range(RANKS)]
    number = 0
    while ranks[0].snapshots.begun < SNAPSHOTS:
        assert vault.is_alive()
        number += 1
        # What the census of a step says: if one has no buffer, nobody saves.
        full = any(rank.snapshots.full() for rank in ranks)
        for rank in ranks:
            rank.step(number, full)
    for rank in ranks:
        # The last one is not spared the next step either.
        rank.step(number + 1, full=True)
    # Whatever was begun is offered in the end, and taken.
    for rank in ranks:
        wait_until(lambda rank=rank: not rank.delivery.standing and len(rank.snapshots._free) == 2)  # type: ignore[misc]
    over.set()
    vault.join()
    assert len(found) == SNAPSHOTS
    assert ranks[0].snapshots.put_off == number + 1 - SNAPSHOTS > 0
    for step, parts in found.items():
        assert len(parts) == RANKS
        saved = read_from_vaults(list(parts.values()), step, TOKEN)
        values = {float(value) for tensor in saved.state for value in (tensor.min(), tensor.max())}  # type: ignore[attr-defined]
        assert values == {float(step)}


def test_what_nobody_takes_is_withdrawn_and_its_buffer_used_again() -> None:
    offered: SimpleQueue[Offered] = SimpleQueue()
    rank = Training(0, offered)
    for number in (1, 2):
        rank.step(number, full=False)
    # One thread delivers, so the second part is offered when the first one is gone.
    messages = [offered.get(timeout=10.0)]
    assert rank.snapshots.full()
    for message in messages:
        rank.delivery.withdraw(Withdraw(message.part.name))
    rank.delivery.withdraw(Withdraw(offered.get(timeout=10.0).part.name))
    wait_until(lambda: not rank.snapshots.full())
    rank.delivery.withdraw(Withdraw())
    assert rank.snapshots.full()
    assert rank.delivery.closed


def test_a_part_that_is_read_stays_still_until_it_is_read() -> None:
    offered: SimpleQueue[Offered] = SimpleQueue()
    delivery = ToVaults("r0", TOKEN, lambda: HOST, offered.put)
    gone = threading.Event()
    share = Share(1, Generation(1, 1), 0, 1)
    thread = threading.Thread(target=lambda: (delivery.deliver(share, memoryview(b"some bytes")), gone.set()))
    thread.start()
    name = offered.get(timeout=10.0).part.name
    with delivery._offers.lend(name) as memory:
        assert memory is not None
        delivery.withdraw(Withdraw(name))
        assert not gone.wait(0.05)
    assert gone.wait(10.0)
    thread.join()

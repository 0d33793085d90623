"""Snapshots beside the training: each is the state of one step, whole; and nobody waits but for a running copy."""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from everstep.actors.faults import Chaos
from everstep.actors.rank.census import Wish
from everstep.actors.rank.parts import Portion, joined
from everstep.actors.rank.snapshots import Saved, Snapshots
from everstep.actors.rank.to_storage import ToStorage
from everstep.actors.saved.manifest import folder_of
from everstep.actors.saved.storage import Storage
from everstep.actors.saving_messages import Stored
from everstep.conf.errors import SavedStateError
from everstep.policies.world import Generation, Member, Seat, World

CPU = torch.device("cpu")


def world(number: int = 1, ranks: int = 1) -> World:
    return World(Generation(1, number), tuple(Member(f"r{place}", Seat(place)) for place in range(ranks)))


class Gate(Storage):
    """A storage that is as slow, or as broken, as a test wants it."""

    def __init__(self, where: str) -> None:
        super().__init__(where)
        self.open = threading.Event()
        self.open.set()
        self.broken = False

    def write(self, path: str, parts: Sequence[Any]) -> None:
        assert self.open.wait(10.0)
        if self.broken:
            raise SavedStateError(f"{path} cannot be written: no space left on device")
        super().write(path, parts)


class Training:
    """One rank of several that all hold the same: some tensors, every one of them full of the step's number."""

    def __init__(self, storage: Storage, every: int = 1, rank: int = 0) -> None:
        self.sent: list[Stored] = []
        self.tensors = [torch.zeros(50_000) for _ in range(6)]
        chaos = Chaos((), None, lambda fault, evidence: None)
        delivery = ToStorage(f"r{rank}", storage, self.sent.append)
        self.snapshots = Snapshots(f"r{rank}", delivery, every, CPU, chaos)

    def step(self, number: int, there: World, settle: Callable[[], None] | None = None) -> None:
        """An optimizer step, tensor by tensor, and what follows it."""
        (settle or self.snapshots.settle)()
        for tensor in self.tensors:
            tensor.fill_(number)
        if self.snapshots.due(number, False, there, self.snapshots.wish()):
            self.snapshots.take(number, there, lambda: self._saved(number))

    def _saved(self, number: int) -> Any:
        return Saved(number, list(self.tensors), float(number), {"step": number})  # type: ignore[arg-type]


def read(storage: Storage, messages: Sequence[Stored]) -> Saved:
    """The state that these parts make up."""
    parts = []
    for message in sorted(messages, key=lambda message: message.part):
        memory = torch.empty(message.bytes, dtype=torch.uint8)
        storage.read_into(f"{folder_of(message.step)}/{message.file}", memory.numpy().data)
        parts.append(memory)
    held = joined(parts)
    assert isinstance(held, Saved)
    return held


@pytest.fixture
def slow_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies that take as long as several steps, one tensor after another."""
    copy = Portion.copy_to

    def slowly(self: Portion, memory: torch.Tensor) -> None:
        for name in list(self.tensors):
            time.sleep(0.001)
            copy(Portion(self.place, self.parts, {name: self.tensors[name]}, self.layout, self.structure), memory)

    monkeypatch.setattr(Portion, "copy_to", slowly)


@pytest.mark.usefixtures("slow_copies")
def test_nothing_is_mixed_from_two_steps() -> None:
    """Hammered: steps take no time, copies do."""
    storage = Storage("mock:///memory")
    training, there = Training(storage), world()
    number = 0
    while training.snapshots.begun < 12:
        number += 1
        training.step(number, there)
    assert training.snapshots.finish(30.0)
    assert [message.problem for message in training.sent] == [""] * 12
    for message in training.sent:
        held = read(storage, [message])
        values = {float(value) for tensor in held.state for value in tensor.unique()}  # type: ignore[attr-defined]
        assert values == {message.step}
        assert (held.step, held.loss, held.streams) == (message.step, message.step, {"step": message.step})
    assert training.snapshots.waited > 0.05


@pytest.mark.usefixtures("slow_copies")
def test_without_the_wait_it_would_be_mixed_and_that_is_noticed(tmp_path: Path) -> None:
    training, there = Training(Storage(str(tmp_path))), world()
    for number in range(1, 30):
        training.step(number, there, settle=lambda: None)
    assert training.snapshots.finish(10.0)
    assert any("changed it while it was copied" in message.problem for message in training.sent)


def test_a_world_saves_the_state_once(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    ranks = [Training(storage, rank=rank) for rank in range(3)]
    for rank in ranks:
        rank.step(1, world(ranks=3))
        assert rank.snapshots.finish(10.0)
    messages = [message for rank in ranks for message in rank.sent]
    state = 6 * 50_000 * 4
    assert state < sum(message.bytes for message in messages) < state + 10_000
    assert max(message.bytes for message in messages) < state / 3 + 5_000
    assert read(storage, messages).step == 1


def test_memory_that_cannot_be_had_beforehand_keeps_nobody_from_saving(tmp_path: Path) -> None:
    training = Training(storage := Storage(str(tmp_path)))
    training.snapshots.warm(1 << 60)
    deadline = time.monotonic() + 30.0
    while training.snapshots.full():
        assert time.monotonic() < deadline, "its buffers never came back"
        time.sleep(0.001)
    training.step(1, world())
    assert training.snapshots.finish(30.0)
    assert read(storage, training.sent).step == 1


def test_training_waits_for_no_storage(tmp_path: Path) -> None:
    """Two are held, the others are put off; when the storage is back all goes on."""
    storage = Gate(str(tmp_path))
    storage.open.clear()
    training, there = Training(storage), world()
    began = time.monotonic()
    for number in range(1, 9):
        training.step(number, there)
    assert time.monotonic() - began < 5.0
    assert training.snapshots.put_off == 6
    assert not training.snapshots.finish(0.01)
    storage.open.set()
    assert training.snapshots.finish(10.0)
    assert [message.step for message in training.sent] == [1, 2]
    training.step(9, there)
    assert training.snapshots.finish(10.0)
    assert read(storage, training.sent[-1:]).step == 9


def test_a_storage_that_fails_is_told_of_and_tried_again(tmp_path: Path) -> None:
    storage = Gate(str(tmp_path))
    storage.broken = True
    training, there = Training(storage), world()
    training.step(1, there)
    assert training.snapshots.finish(10.0)
    storage.broken = False
    training.step(2, there)
    assert training.snapshots.finish(10.0)
    assert ["no space left" in message.problem for message in training.sent] == [True, False]


def test_what_cannot_be_saved_when_it_is_due_is_saved_as_soon_as_it_can_be(tmp_path: Path) -> None:
    kept = Training(Storage(str(tmp_path)), every=4).snapshots
    full = {4, 5, 9}
    assert [step for step in range(1, 14) if kept.due(step, step == 9, world(), Wish(step in full))] == [6, 8, 9, 12]


@pytest.mark.parametrize("rank", [0, 1])
def test_what_is_due_is_the_same_on_all_members(rank: int, tmp_path: Path) -> None:
    """Every so often, the last one, and the first one of another world; a newcomer says the same."""
    kept = Training(Storage(str(tmp_path)), every=4, rank=rank).snapshots
    assert [step for step in range(1, 10) if kept.due(step, step == 9, world())] == [4, 8, 9]
    newcomer = Training(Storage(str(tmp_path)), every=4, rank=3).snapshots
    for held in (kept, newcomer):
        assert [step for step in range(10, 15) if held.due(step, False, world(2))] == [10, 12]

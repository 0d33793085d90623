"""The copy of a snapshot from the device to pinned host memory beside the next step: part of ``device_check``."""

import time
from dataclasses import dataclass, field
from functools import partial

import torch
from everstep.actors.faults import Chaos
from everstep.actors.rank.parts import joined
from everstep.actors.rank.snapshots import Saved, Share, Snapshots
from everstep.benchmarks.common import Row, median_row
from everstep.policies.world import Generation, Member, Seat, World
from torch import Tensor, nn

_NAME = "device-check"
_TIMEOUT_S = 120.0


@dataclass
class Kept:
    """Keeps what was delivered last, as a vault would."""

    closed: bool = False
    pinned: bool = True
    parts: dict[int, Tensor] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def deliver(self, share: Share, memory: memoryview) -> None:
        self.pinned = self.pinned and torch.frombuffer(memory, dtype=torch.uint8).is_pinned()
        # Only the newest, and a copy: the memory is the snapshot's own.
        self.parts = {share.step: torch.frombuffer(bytearray(memory), dtype=torch.uint8)}

    def give_up(self, share: Share, problem: str) -> None:
        self.problems.append(problem)


def copy_rows(model: nn.Module, device: torch.device, rounds: int, seed: int) -> list[Row]:
    """Steps with a snapshot after each, in turns with steps without: what it costs them, and whether it is right.

    Args:
        model: whose gradients are there already; its optimizer's state is copied along.
        rounds: steps of each kind.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    world = World(Generation(1, 1), (Member(_NAME, Seat(0)),))
    kept = Kept()
    saver = Snapshots(_NAME, kept, 1, device, Chaos((), None, lambda fault, evidence: None), "snapshot")
    work = Products(device)
    took: dict[bool, list[float]] = {False: [], True: []}
    right = True
    for number in range(1, 2 * rounds + 3):
        saves = number % 2 == 0
        optimizer.step()
        _synchronise(device)
        began = time.monotonic()
        if saves:
            saved = Saved(number, _state(model, optimizer), 0.0, {})  # type: ignore[arg-type]
            saver.take(number, world, partial(_given, saved))
        # Beside the copy, if there is one: what follows in training.
        work()
        saver.settle()
        _synchronise(device)
        if number > 2:
            took[saves].append(time.monotonic() - began)
        if saves and not saver.finish(_TIMEOUT_S):
            kept.problems.append(f"step {number} was not copied in {_TIMEOUT_S:g} s")
        if saves and number in kept.parts:
            right = right and _equal(joined([kept.parts[number]]), _state(model, optimizer))
    metrics, taken = saver.metrics, max(1.0, saver.metrics["snapshots"])
    alone = median_row("step_without_copy", [1000 * seconds for seconds in took[False]], "ms", seed)
    beside = median_row("step_with_copy", [1000 * seconds for seconds in took[True]], "ms", seed)
    blocked = 1000 * (metrics["snapshot_begin_s"] + metrics["snapshot_wait_s"]) / taken
    complete = not kept.problems and taken == rounds + 1
    return [
        Row("copies_right", float(right and complete), "1: every snapshot has the bits of its step"),
        *([Row("copies_pinned", float(kept.pinned), "1: into pinned memory")] if device.type == "cuda" else []),
        Row("copy_size", metrics["snapshot_bytes"] / taken / 2**20, "MiB"),
        Row("copy_speed", metrics["snapshot_bytes"] / 2**30 / metrics["snapshot_copy_s"], "GiB/s, beside the step"),
        Row("copy_blocking_share", 100 * blocked / beside.value, "% of a step"),
        alone,
        beside,
    ]


def _given(saved: Saved) -> Saved:
    return saved


def _state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, object]:
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()["state"]}


def _equal(held: object, live: dict[str, object]) -> bool:
    """Whether a saved state has the bits of the live one."""
    assert isinstance(held, Saved)
    saved = _tensors(held.state)
    there = _tensors(live)
    return len(saved) == len(there) and all(
        torch.equal(one, other.cpu()) for one, other in zip(saved, there, strict=True)
    )


def _tensors(value: object) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        return [tensor for key in value for tensor in _tensors(value[key])]
    return []


class Products:
    """Something for the device to do meanwhile, about as long as a copy takes."""

    def __init__(self, device: torch.device) -> None:
        size = 4096 if device.type == "cuda" else 256
        self._matrix = torch.randn(size, size, device=device)

    def __call__(self) -> None:
        held = self._matrix
        for _ in range(8):
            held = (held @ self._matrix).clamp_(-1, 1)


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)

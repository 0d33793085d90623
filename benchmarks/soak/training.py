"""The training of a soak: small, with all that could go wrong in it, and what it leaves to compare."""

import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import everstep
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

MICROBATCHES = 12
_GATE_S = 300.0


class Samples(Dataset[dict[str, Any]]):
    """Points, each the same whoever reads it."""

    def __len__(self) -> int:
        return 50

    def __getitem__(self, item: int) -> dict[str, Any]:
        x = torch.randn(24, generator=torch.Generator().manual_seed(item))
        return {"id": item, "x": x, "y": int(x[0] > 0)}


@dataclass(frozen=True)
class Left:
    """What a run left.

    Attributes:
        samples: by step, the sample ids of each microbatch that was computed by anybody.
        rates: by step, learning rate and loss, as any rank saw them.
        pids: of all ranks that trained.
    """

    weights: str
    samples: dict[int, set[tuple[int, ...]]]
    rates: dict[int, set[tuple[float, float]]]
    pids: tuple[int, ...] = ()

    def differences(self, other: "Left") -> list[str]:
        """In which of what is compared it differs from another run."""
        pairs = {
            "weights": (self.weights, other.weights),
            "sample ids": (self.samples, other.samples),
            "learning rates and losses": (self.rates, other.rates),
        }
        return [what for what, (mine, theirs) in pairs.items() if mine != theirs]


def gate(folder: Path, step: int) -> Path:
    """Ranks wait for this file in the first microbatch that they compute of a step that has one."""
    return folder / f"gate-{step}"


def train(ctx: everstep.RankContext) -> None:
    """Dropout, uneven weights, some of them 0; notes what it saw."""
    folder, gates = Path(ctx.config["folder"]), set(ctx.config["gates"])
    model = nn.Sequential(nn.Linear(24, 300), nn.ReLU(), nn.Dropout(0.2), nn.Linear(300, 300), nn.Linear(300, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step))
    data = everstep.Microbatches(Samples(), size=3)
    run = ctx.begin(model=model, optimizer=optimizer, scheduler=scheduler, data=data, steps=ctx.config["steps"])
    notes = os.open(folder / f"{os.getpid()}.notes", os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def note(*facts: object) -> None:
        os.write(notes, (json.dumps(facts) + "\n").encode())

    for step in run:
        for place, batch in enumerate(step):
            if place == 0 and step.number in gates:
                _await(gate(folder, step.number))
            ids = batch["id"].tolist()
            step.backward(_loss(model, batch), weight=sum(ids) % 7)
            note("samples", step.number, ids)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        note("rate", step.number, scheduler.get_last_lr()[0], step.loss)
        scheduler.step()


def read(folder: Path, weights: str) -> Left:
    """What the ranks of a finished run noted."""
    left = Left(weights, {}, {}, tuple(int(path.stem) for path in folder.glob("*.notes")))
    for what, step, *facts in _notes(folder.glob("*.notes")):
        if what == "samples":
            left.samples.setdefault(step, set()).add(tuple(facts[0]))
        else:
            left.rates.setdefault(step, set()).add((facts[0], facts[1]))
    return left


def _notes(files: Iterable[Path]) -> Iterable[list[Any]]:
    for path in files:
        yield from map(json.loads, path.read_text().splitlines())


def _loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch["x"]), batch["y"])


def _await(file: Path) -> None:
    deadline = time.monotonic() + _GATE_S
    while not file.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{file} did not come in {_GATE_S:g} s")
        time.sleep(0.005)

"""The training of a campaign: small, and on one rank something goes wrong in it."""

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import everstep
import torch
from everstep.benchmarks.localisation import numbers
from everstep.benchmarks.localisation.plan import SLOW_STEPS, Case, Family, Kind, Launch
from torch import Tensor, nn
from torch.utils.data import Dataset

MICROBATCHES = 8
# What a microbatch and its data take where times are compared: as long as on a device that nobody shares.
BUSY_S, LOAD_S = 0.02, 0.02
# Less than what may be called a hang, and more than that.
PAUSE_S, EXPORT_S = 1.0, 4.0
_GATE_S = 120.0


class Samples(Dataset[dict[str, Any]]):
    """Points, each the same whoever reads it, and as slow as is wanted."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.stuck = False

    def __len__(self) -> int:
        return 64

    def __getitem__(self, item: int) -> dict[str, Any]:
        if self.stuck:
            threading.Event().wait()
        if self.seconds:
            time.sleep(self.seconds)
        x = torch.randn(16, generator=torch.Generator().manual_seed(item))
        return {"x": x, "y": int(x[0] > 0)}


def gate(folder: Path, case: int) -> Path:
    """All wait for this file before a case."""
    return folder / f"gate-{case}"


def over(folder: Path, case: int) -> Path:
    """A slow rank need not be slow any longer."""
    return folder / f"over-{case}"


def fired(folder: Path, case: int) -> Path:
    """Says who was hit, and when."""
    return folder / f"fired-{case}"


def train(ctx: everstep.RankContext) -> None:
    """One launch."""
    folder, launch = Path(ctx.config["folder"]), ctx.config["launch"]
    samples, model = Samples(), nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.Linear(32, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    data = everstep.Microbatches(samples, size=1)
    faulty = numbers.Faulty(model, optimizer)
    villain = Villain(ctx, folder, launch, samples, faulty)
    for step in ctx.begin(model=model, optimizer=optimizer, data=data, steps=launch.steps):
        for place, batch in enumerate(step):
            if place == 0:
                villain.at(step.number)
            villain.compute()
            step.backward(nn.functional.cross_entropy(model(batch["x"]), batch["y"]))
        optimizer.step()
        villain.applied()


class Villain:
    """What goes wrong, when it is due and this rank is meant."""

    def __init__(
        self, ctx: everstep.RankContext, folder: Path, launch: Launch, samples: Samples, faulty: numbers.Faulty
    ) -> None:
        self._ctx = ctx
        self._folder = folder
        self._launch = launch
        self._samples = samples
        self._faulty = faulty
        self._gates = {step: place for place, step in enumerate(launch.gates)}
        self._timed = launch.family is Family.STRAGGLER
        self._slow: Case | None = None

    def at(self, step: int) -> None:
        """The first microbatch of a step has begun on this rank."""
        self._samples.seconds = LOAD_S if self._timed else 0.0
        if step in self._gates:
            self._slow = None
            self._await_others(self._gates[step])
        # A fault that recurs is hit anew in each step; whoever comes in later is healthy.
        self._faulty.again()
        place = self._gates.get(step - 1)
        if place is not None:
            case = self._launch.cases[place]
            if self._ctx.replica == case.replica and self._first(place):
                self._strike(case)
        if self._slow is not None and (step >= self._slow.step + SLOW_STEPS or self._called_off(self._slow)):
            self._slow = None
        if self._slow is not None and self._slow.kind is Kind.LOADING:
            self._samples.seconds *= 1 + self._slow.percent / 100

    def compute(self) -> None:
        """As long as a microbatch takes."""
        if self._timed:
            slow = self._slow is not None and self._slow.kind is Kind.COMPUTING
            time.sleep(BUSY_S * (1 + (self._slow.percent / 100 if slow and self._slow else 0)))

    def applied(self) -> None:
        """The update is in the weights."""
        self._faulty.applied()

    def _called_off(self, case: Case) -> bool:
        return over(self._folder, self._launch.cases.index(case)).exists()

    def _await_others(self, place: int) -> None:
        with self._ctx.stage("gate"):
            if self._launch.family is Family.NUMERIC and place:
                self._mend(place)
            deadline = time.monotonic() + _GATE_S
            while not gate(self._folder, place).exists():
                if time.monotonic() > deadline:
                    raise TimeoutError(f"nobody opened gate {place} in {_GATE_S:g} s")
                time.sleep(0.005)

    def _mend(self, place: int) -> None:
        """Whoever was hit takes the state of a healthy one, all being in front of the same step."""
        hit = self._launch.cases[place - 1].replica
        file = self._folder / f"healthy-{place}"
        if self._ctx.replica == (0 if hit else 1):
            self._faulty.save(file)
        if self._ctx.replica == hit:
            deadline = time.monotonic() + _GATE_S
            while not file.exists():
                if time.monotonic() > deadline:
                    raise TimeoutError("no healthy rank has saved its state")
                time.sleep(0.005)
            self._faulty.mend(file)

    def _first(self, place: int) -> bool:
        """Whether nobody was hit by this case before; says so, with the time."""
        said = {"time": time.time(), "pid": os.getpid(), "replica": self._ctx.replica}
        try:
            with fired(self._folder, place).open("x") as file:
                file.write(json.dumps(said))
        except FileExistsError:
            return False
        return True

    def _strike(self, case: Case) -> None:
        match case.kind:
            case Kind.STOPPED:
                os.kill(os.getpid(), signal.SIGSTOP)
            case Kind.LOCK:
                lock = threading.Lock()
                with lock:
                    lock.acquire()
            case Kind.LOADER:
                self._samples.stuck = True
            case Kind.COLLECTIVE:
                _enter_another(self._ctx)
            case Kind.COMPUTING | Kind.LOADING:
                self._slow = case
            case Kind.HEALTHY:
                # What looks like a fault and is none: a short pause, and a long one that is announced.
                time.sleep(PAUSE_S)
                with self._ctx.stage("export"):
                    time.sleep(EXPORT_S)
            case _:
                self._faulty.hit(case)


def _enter_another(ctx: everstep.RankContext) -> None:
    """From now on this rank gathers where its peers exchange parts."""
    from everstep.actors.rank.communicator import ProcessGroupCommunicator

    def gather(self: ProcessGroupCommunicator, output: Tensor, source: Tensor) -> Any:
        return self.all_gather(torch.empty(self.size * source.numel(), dtype=source.dtype), source)

    ProcessGroupCommunicator.all_to_all = gather  # type: ignore[method-assign]

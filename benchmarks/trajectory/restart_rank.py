"""One rank of one life of the checkpoint-restart arm: plain data parallelism, on the microbatches of everstep's ranks.

Started by its supervisor with the number of its replica and its ``Life``.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from everstep.actors.rank.order import SampleOrder, mix
from everstep.actors.rank.rng import seed_everything
from everstep.actors.rank.trace import Trace
from everstep.benchmarks.trajectory import cpu_time
from everstep.benchmarks.trajectory.course import BUCKET_MIB, SEQUENCES, Course, build, dataset
from everstep.examples.gpt import next_token_loss
from everstep.policies.workload import Balanced
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import default_collate

TRACES, LOSSES, STARTS = "traces", "losses.jsonl", "starts.jsonl"
_CHECKPOINT = "checkpoint.pt"
_BUCKET = int(BUCKET_MIB * 2**20 / 4)
_TIMEOUT = timedelta(seconds=60)


@dataclass(frozen=True)
class Life:
    """What the ranks of one life are told.

    Attributes:
        course: as a mapping.
        folder: for everything that is written.
        number: of the life, from 0.
        replicas: who lives, as numbered in the first life.
        checkpoint_every: steps.
        supervisor: its pid.
    """

    course: dict[str, Any]
    folder: str
    number: int
    replicas: Sequence[int]
    checkpoint_every: int
    supervisor: int


class Rank:
    """Trains from the last checkpoint to the end, or to a loss."""

    def __init__(self, life: Life, replica: int) -> None:
        self._life = life
        self._course = Course(**life.course)
        self._folder = Path(life.folder)
        self._rank, self._world = life.replicas.index(replica), len(life.replicas)
        self._lost_at = next((fault.step for fault in self._course.faults if fault.replica == replica), None)
        self._step = 0
        self._trace = Trace(str(self._folder / TRACES), f"{life.number}-{replica}")
        self._losses, self._starts = (Trace(life.folder, Path(name).stem) for name in (LOSSES, STARTS))
        seed_everything(mix(self._course.seed))
        self._model, self._optimizer, self._scheduler = build(self._course)
        self._dataset = dataset()
        self._order = SampleOrder(
            len(self._dataset), SEQUENCES, self._course.microbatches, self._course.seed, shuffle=True
        )

    def train(self) -> None:
        """All steps that are left."""
        group = f"file://{self._folder}/group-{self._life.number}"
        dist.init_process_group("gloo", init_method=group, rank=self._rank, world_size=self._world, timeout=_TIMEOUT)
        self._load()
        mine = Balanced().plan(range(self._world), self._course.microbatches).indices[self._rank]
        dist.barrier()
        self._note_start()
        while self._step < self._course.steps:
            self._take_step(mine)
            self._step += 1
            if self._rank == 0 and self._step % self._life.checkpoint_every == 0:
                self._save()
        dist.destroy_process_group()

    def _take_step(self, mine: Sequence[int]) -> None:
        total = torch.zeros(1)
        for index in mine:
            started = time.monotonic()
            windows = default_collate([self._dataset[sample] for sample in self._order.samples(self._step, index)])
            seed_everything(mix(self._course.seed, self._step, index))
            loss = next_token_loss(self._model, windows)
            (loss / self._course.microbatches).backward()
            total += loss.detach() / self._course.microbatches
            self._trace.write("computed", step=self._step, index=index, span=(started, time.monotonic()))
        self._reduce()
        dist.all_reduce(total)
        clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._scheduler.step()
        if self._rank == 0:
            self._losses.write("loss", step=self._step, loss=float(total))

    def _reduce(self) -> None:
        """Sum the gradients bucket by bucket; a rank that is to be lost is lost when the first one is summed."""
        gradients = [parameter.grad for parameter in self._model.parameters() if parameter.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        pending = [dist.all_reduce(bucket, async_op=True) for bucket in flat.split(_BUCKET)]
        for one in pending:
            one.wait()
            if self._step == self._lost_at:
                os.kill(os.getpid(), signal.SIGKILL)
        for gradient, part in zip(gradients, flat.split([one.numel() for one in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))

    def _note_start(self) -> None:
        if self._life.number:
            self._starts.write("started", cpu_s=time.process_time())
        elif self._rank == 0:
            cpu_time.note(self._folder, self._life.supervisor)

    def _parts(self) -> dict[str, Any]:
        return {"model": self._model, "optimizer": self._optimizer, "scheduler": self._scheduler}

    def _save(self) -> None:
        """There whole or not at all."""
        state = {name: part.state_dict() for name, part in self._parts().items()}
        torch.save(state | {"step": self._step}, self._folder / "checkpoint.new")
        (self._folder / "checkpoint.new").replace(self._folder / _CHECKPOINT)

    def _load(self) -> None:
        if (path := self._folder / _CHECKPOINT).exists():
            state = torch.load(path)
            self._step = state.pop("step")
            for name, part in self._parts().items():
                part.load_state_dict(state[name])


def main() -> None:
    """The command line."""
    torch.set_num_threads(1)
    replica, life = sys.argv[1:]
    Rank(Life(**json.loads(life)), int(replica)).train()


if __name__ == "__main__":
    main()

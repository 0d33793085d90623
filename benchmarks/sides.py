"""The two sides of the comparison of speed: everstep's loop and plain DDP, with the same model, data and optimizer.

DDP is started by torchrun: ``torchrun --nproc-per-node=2 -m everstep.benchmarks.sides '{"tokens": 512, ...}'``.
"""

import json
import os
import sys
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import everstep
import torch
import torch.distributed as dist
from everstep.actors import wire
from everstep.actors.rank.order import SampleOrder
from everstep.benchmarks.turns import Turn
from everstep.examples.gpt import GPT, GPTConfig, next_token_loss
from everstep.examples.text import ByteBlocks, prepare
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import default_collate

MICROBATCHES = 8


@dataclass(frozen=True)
class Course:
    """What both sides train, and when they pause.

    Attributes:
        side: name of the training.
        tokens: of a microbatch.
        steps: optimizer steps in all.
        pause: steps between two turns.
        host, port: of the ``Turns``.
    """

    side: str
    tokens: int
    steps: int
    pause: int
    seed: int
    host: str
    port: int

    @property
    def block(self) -> int:
        return min(self.tokens, GPTConfig().block)

    @property
    def sequences(self) -> int:
        return self.tokens // self.block

    def dataset(self) -> ByteBlocks:
        return ByteBlocks(prepare(), self.block)

    def turn(self) -> Turn:
        return Turn((self.host, self.port), self.side, os.getpid())


def train(ctx: everstep.RankContext) -> None:
    """everstep's side, as its documentation writes a loop, with pauses."""
    course = Course(**ctx.config)
    traffic = Traffic()
    model, optimizer = _build()
    data = everstep.Microbatches(course.dataset(), size=course.sequences)
    run = ctx.begin(model=model, optimizer=optimizer, data=data, steps=course.steps)
    turn = course.turn()
    for step in run:
        if step.number % course.pause == 0:
            turn.wait(**traffic.take())
            traffic.take()
        for windows in step:
            step.backward(next_token_loss(model, windows), weight=windows[:, 1:].numel())
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    turn.end(**traffic.take())


def train_ddp(course: Course) -> None:
    """DDP's side; gradients are exchanged in the last backward of a step."""
    torch.set_num_threads(1)
    torch.manual_seed(course.seed)
    dist.init_process_group("gloo")
    model, optimizer = _build()
    ddp = DistributedDataParallel(model)
    dataset = course.dataset()
    quota = MICROBATCHES // dist.get_world_size()
    mine = range(dist.get_rank() * quota, (dist.get_rank() + 1) * quota)
    # The same samples as everstep's, but listed before the clock runs.
    order = SampleOrder(len(dataset), course.sequences, MICROBATCHES, course.seed, shuffle=True)
    samples = {(step, index): order.samples(step, index) for step in range(course.steps) for index in mine}
    turn = course.turn()
    for step in range(course.steps):
        if step % course.pause == 0:
            turn.wait()
        for index in mine:
            windows = default_collate([dataset[sample] for sample in samples[step, index]])
            with nullcontext() if index == mine[-1] else ddp.no_sync():
                (next_token_loss(ddp, windows) / quota).backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    turn.end()
    dist.destroy_process_group()


class Traffic:
    """Counts what this process says to the controller and hears from it: every message passes through ``wire``."""

    def __init__(self) -> None:
        self._sent: Counter[str] = Counter()
        self._heard: Counter[str] = Counter()
        encode, decode = wire.encode, wire.decode

        def counting_encode(message: object) -> bytes:
            self._sent[type(message).__name__] += 1
            return encode(message)

        def counting_decode(body: bytes) -> Any:
            message = decode(body)
            self._heard[type(message).__name__] += 1
            return message

        wire.encode, wire.decode = counting_encode, counting_decode

    def take(self) -> dict[str, dict[str, int]]:
        """Messages by kind since the last call."""
        (sent, self._sent), (heard, self._heard) = (self._sent, Counter()), (self._heard, Counter())
        return {"sent": sent, "heard": heard}


def _build() -> tuple[GPT, torch.optim.Optimizer]:
    model = GPT(GPTConfig())
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)


if __name__ == "__main__":
    train_ddp(Course(**json.loads(sys.argv[1])))

"""The training that all peers share: the example's model and text, 8 microbatches a step over 4 ranks."""

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from ...examples.gpt import GPT, GPTConfig, next_token_loss
from ...examples.text import ByteBlocks, prepare

RANKS = 4
MICROBATCHES = 8
SEQUENCES = 2


class Workload:
    """One rank's model, optimizer and data, equal on all ranks at the start."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.model = GPT(GPTConfig())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self._blocks = ByteBlocks(prepare(), block=self.model.config.block)

    def backward(self, model: nn.Module, step: int, index: int) -> None:
        """Add one microbatch's share of its rank's mean gradient."""
        first = (step * MICROBATCHES + index) * SEQUENCES
        windows = torch.stack([self._blocks[i % len(self._blocks)] for i in range(first, first + SEQUENCES)])
        (next_token_loss(model, windows) * RANKS / MICROBATCHES).backward()

    def flat_gradient(self) -> Tensor:
        """A copy of the gradient in one vector."""
        return torch.cat([p.grad.flatten() for p in self.model.parameters() if p.grad is not None])

    def set_gradient(self, flat: Tensor) -> None:
        """The inverse of ``flat_gradient``."""
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))

    def update(self) -> None:
        """Apply the gradient and clear it."""
        clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def ddp_step(self, ddp: DistributedDataParallel, step: int) -> None:
        """One whole optimizer step under DDP, which exchanges gradients in the last backward."""
        *earlier, last = microbatches_of(dist.get_rank())
        for index in (*earlier, last):
            with nullcontext() if index == last else ddp.no_sync():
                self.backward(ddp, step, index)
        self.update()

    def state_dict(self) -> dict[str, Any]:
        """Everything that training changes, besides the step."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of ``state_dict``."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])

    def save(self, path: Path, next_step: int) -> None:
        """Write a checkpoint that is there whole or not at all."""
        temporary = path.with_suffix(".new")
        torch.save(self.state_dict() | {"next_step": next_step}, temporary)
        temporary.replace(path)

    def load(self, path: Path) -> int:
        """Read a checkpoint and return the step to go on with."""
        state = torch.load(path)
        self.load_state_dict(state)
        return int(state["next_step"])


def microbatches_of(rank: int) -> range:
    """The indices that a rank computes in every step."""
    each = MICROBATCHES // RANKS
    return range(rank * each, (rank + 1) * each)


def world_name() -> int:
    """A number that all ranks of this process group share and that no later group has: rank 0's pid."""
    pid = torch.tensor([os.getpid()])
    dist.broadcast(pid, src=0)
    return int(pid.item())

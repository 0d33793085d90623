"""Train a small GPT on the bytes of the Python standard library, through whatever fails."""

import math
from collections.abc import Callable
from pathlib import Path

import everstep
import torch
from everstep.examples.gpt import GPT, GPTConfig, next_token_loss
from everstep.examples.text import ByteBlocks, prepare
from torch.optim.lr_scheduler import LambdaLR


def warm_up_cosine(warm_up: int, steps: int, floor: float = 0.1) -> Callable[[int], float]:
    """A factor of the learning rate: linear up to 1, then a cosine down to ``floor``."""

    def factor(step: int) -> float:
        if step < warm_up:
            return (step + 1) / warm_up
        progress = min(1.0, (step - warm_up) / max(1, steps - warm_up))
        return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress))

    return factor


def train(ctx: everstep.RankContext) -> None:
    """One rank's whole training; nothing in it knows about ranks, failures or restarts."""
    config = ctx.config
    model = GPT(GPTConfig(**config["model"])).to(ctx.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["learning_rate"], weight_decay=0.1)
    scheduler = LambdaLR(optimizer, warm_up_cosine(config["warm_up_steps"], config["steps"]))

    cache = config.get("cache")
    dataset = ByteBlocks(prepare(Path(cache) if cache else None), block=model.config.block)
    data = everstep.Microbatches(dataset, size=config["sequences_per_microbatch"])
    run = ctx.begin(model=model, optimizer=optimizer, scheduler=scheduler, data=data, steps=config["steps"])

    for step in run:
        for windows in step:
            windows = windows.to(ctx.device)
            tokens = windows[:, 1:].numel()
            step.backward(next_token_loss(model, windows), weight=tokens)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()

"""Train a small mixture of experts on the bytes of the Python standard library, through whatever fails."""

from pathlib import Path

import everstep
import torch
from everstep.examples.gpt import GPTConfig
from everstep.examples.gpt_bytes import warm_up_cosine
from everstep.examples.moe import balanced_loss, moe_gpt
from everstep.examples.text import ByteBlocks, prepare
from torch.optim.lr_scheduler import LambdaLR


def train(ctx: everstep.RankContext) -> None:
    """One rank's whole training."""
    config = ctx.config
    model = moe_gpt(GPTConfig(**config["model"]), config["experts"], config["top"]).to(ctx.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["learning_rate"], weight_decay=0.1)
    scheduler = LambdaLR(optimizer, warm_up_cosine(config["warm_up_steps"], config["steps"]))

    cache = config.get("cache")
    dataset = ByteBlocks(prepare(Path(cache) if cache else None), block=model.config.block)
    data = everstep.Microbatches(dataset, size=config["sequences_per_microbatch"])
    run = ctx.begin(model=model, optimizer=optimizer, scheduler=scheduler, data=data, steps=config["steps"])

    for step in run:
        for windows in step:
            windows = windows.to(ctx.device)
            minimised, loss = balanced_loss(model, windows, config["balance"])
            step.backward(minimised, weight=windows[:, 1:].numel())
            step.record("cross_entropy", loss.item())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()

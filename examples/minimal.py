"""A whole program: two ranks learn to guess the next byte of a text, one of them is killed, and no step is lost.

python -m everstep.examples.minimal
"""

import argparse
import inspect

import everstep
import torch
from ray.train import ScalingConfig
from torch import nn
from torch.nn import functional as F

CONTEXT = 8


def train(ctx: everstep.RankContext) -> None:
    """Runs on every rank; nothing in it knows about the others."""
    text = torch.tensor(list(inspect.getsource(argparse).encode()))
    windows = text.unfold(0, CONTEXT + 1, 1)  # (samples, CONTEXT + 1): anything with a length and items is a data set

    layers = [nn.Embedding(256, 32), nn.Flatten(), nn.Linear(32 * CONTEXT, 256), nn.ReLU(), nn.Dropout(0.1)]
    model = nn.Sequential(*layers, nn.Linear(256, 256)).to(ctx.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    data = everstep.Microbatches(windows, size=32)
    run = ctx.begin(model=model, optimizer=optimizer, data=data, steps=ctx.config["steps"])
    for step in run:
        for batch in step:  # the microbatches that this rank owes; more of them if another rank dies
            batch = batch.to(ctx.device)
            step.backward(F.cross_entropy(model(batch[:, :-1]), batch[:, -1]))
        optimizer.step()  # every .grad is the mean over all microbatches of the step


def main() -> None:
    """Start Ray on this machine, train, and show what came out."""
    trainer = everstep.ElasticTrainer(
        train,
        train_loop_config={"steps": 60},
        scaling_config=ScalingConfig(num_workers=(1, 2)),
        elastic_config=everstep.ElasticConfig(
            microbatches_per_step=8,
            chaos=(everstep.Fault(step=30, replica=1),),  # a rehearsal; without it the weights are the same
        ),
    )
    metrics = trainer.fit().metrics
    recovered, weights = len(metrics["recoveries"]), metrics["weights_sha256"]
    print(f"loss {metrics['loss']:.3f}  recovered {recovered} time(s)  weights {weights}")


if __name__ == "__main__":
    main()

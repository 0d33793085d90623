"""Pre-training on short documents. In plain_loop.py one process does it; elastic_loop.py is the same script on ranks
that may die, and docs/your_own_script.md goes through the difference.
"""

from pathlib import Path

import everstep
import torch
from everstep.examples.docstrings import Documents, docstrings
from everstep.examples.gpt import GPT, GPTConfig
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.optim import AdamW
from torch.optim.lr_scheduler import OneCycleLR

Batch = tuple[Tensor, Tensor]
Scores = dict[str, tuple[Tensor, int]]  # numbers by name, each with its weight in the mean over all batches
NO_TARGET = -100


def pad(documents: list[Tensor]) -> Batch:
    """Bytes and what follows each of them, int64, both of shape (documents, longest)."""
    inputs = pad_sequence([document[:-1] for document in documents], batch_first=True)
    targets = pad_sequence([document[1:] for document in documents], batch_first=True, padding_value=NO_TARGET)
    return inputs, targets


def count(batch: Batch) -> int:
    """Targets in a batch: the weight of its mean loss."""
    return int((batch[1] != NO_TARGET).sum())


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    """Mean cross entropy of the targets, in nats."""
    inputs, targets = batch
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), ignore_index=NO_TARGET)


def save(model: nn.Module, scores: dict[str, float], path: str) -> None:
    """What the run leaves behind."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    torch.save({"model": model.state_dict(), "scores": scores}, path)


def train(ctx: everstep.RankContext) -> None:
    """From random weights to a saved model."""
    config = ctx.config
    torch.manual_seed(config["seed"])
    model = GPT(GPTConfig(**config["model"]))
    optimizer = AdamW(model.parameters(), lr=config["learning_rate"])
    scheduler = OneCycleLR(optimizer, config["learning_rate"], total_steps=config["steps"])

    def score(batch: Batch) -> Scores:
        return {"loss": (loss_of(model, batch), count(batch))}

    documents = Documents(docstrings(), longest=model.config.block + 1)
    held_out, seen = torch.utils.data.random_split(documents, [config["held_out"], len(documents) - config["held_out"]])
    data = everstep.Microbatches(seen, config["documents"], collate_fn=pad, shuffle=False)
    run = ctx.begin(model=model, optimizer=optimizer, scheduler=scheduler, data=data, steps=config["steps"])

    for step in run:
        for batch in step:
            loss = loss_of(model, batch)
            step.backward(loss, weight=count(batch))
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()

    scores = run.evaluate(everstep.Microbatches(held_out, config["documents"], collate_fn=pad), score)
    if run.is_leader:
        save(model, scores, config["output"])

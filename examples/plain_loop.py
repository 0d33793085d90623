"""Pre-training on short documents. In plain_loop.py one process does it; elastic_loop.py is the same script on ranks
that may die, and docs/your_own_script.md goes through the difference.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from everstep.examples.docstrings import Documents, docstrings
from everstep.examples.gpt import GPT, GPTConfig
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.optim import AdamW
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader

Batch = tuple[Tensor, Tensor]
Scores = dict[str, tuple[Tensor, int]]  # numbers by name, each with its weight in the mean over all batches
NO_TARGET = -100
CONFIG = {
    "seed": 0,
    "steps": 60,
    "microbatches": 8,  # to a step
    "documents": 2,  # to a microbatch
    "held_out": 64,  # documents to evaluate on
    "learning_rate": 2.0e-3,
    "model": {"layers": 2, "width": 64, "heads": 2, "block": 128, "dropout": 0.0},
    "output": "runs/loop.pt",
}


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


def endless(loader: Iterable[Batch]) -> Iterator[Batch]:
    """One epoch after the other."""
    while True:
        yield from loader


def evaluate(model: nn.Module, loader: Iterable[Batch], score: Callable[[Batch], Scores]) -> dict[str, float]:
    """Weighted means of the scores over documents that the model has not seen."""
    model.eval()
    with torch.no_grad():
        scores = [score(batch) for batch in loader]
    model.train()
    totals = {name: sum(held[name][1] for held in scores) for name in scores[0]}
    return {name: sum(held[name][0].item() * held[name][1] for held in scores) / totals[name] for name in totals}


def save(model: nn.Module, scores: dict[str, float], path: str) -> None:
    """What the run leaves behind."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    torch.save({"model": model.state_dict(), "scores": scores}, path)


def train(config: dict[str, Any]) -> None:
    """From random weights to a saved model."""
    torch.manual_seed(config["seed"])
    model = GPT(GPTConfig(**config["model"]))
    optimizer = AdamW(model.parameters(), lr=config["learning_rate"])
    scheduler = OneCycleLR(optimizer, config["learning_rate"], total_steps=config["steps"])

    def score(batch: Batch) -> Scores:
        return {"loss": (loss_of(model, batch), count(batch))}

    documents = Documents(docstrings(), longest=model.config.block + 1)
    held_out, seen = torch.utils.data.random_split(documents, [config["held_out"], len(documents) - config["held_out"]])
    data = endless(DataLoader(seen, config["documents"], collate_fn=pad))

    for number in range(config["steps"]):
        step = [next(data) for _ in range(config["microbatches"])]
        weight = sum(map(count, step))
        mean = 0.0
        optimizer.zero_grad()
        for batch in step:
            loss = loss_of(model, batch)
            (loss * count(batch) / weight).backward()
            mean += loss.item() * count(batch) / weight
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        print(f"step {number + 1}/{config['steps']}  loss {mean:.3f}")

    scores = evaluate(model, DataLoader(held_out, config["documents"], collate_fn=pad), score)
    save(model, scores, config["output"])


if __name__ == "__main__":
    train(CONFIG)

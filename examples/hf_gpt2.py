"""Hugging Face's GPT-2 from random weights, on a ``datasets.Dataset`` made on the spot: nothing is downloaded."""

from collections.abc import Iterator

import everstep
import torch
from datasets import Dataset
from everstep.examples.docstrings import docstrings
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import GPT2Config, GPT2LMHeadModel, get_cosine_schedule_with_warmup

END_OF_TEXT = 256
VOCABULARY = 257  # bytes, and the end of a text
NO_TARGET = -100  # what GPT2LMHeadModel leaves out of its loss


def pack(texts: list[bytes], block: int) -> Iterator[tuple[list[int], list[int]]]:
    """Rows of at most ``block`` tokens, each of one or more whole texts, with labels; longer texts are cut."""
    tokens: list[int] = []
    labels: list[int] = []
    for text in texts:
        new = [*text[: block - 1], END_OF_TEXT]
        if len(tokens) + len(new) > block:
            yield tokens, labels
            tokens, labels = [], []
        # Nothing before it tells how a text begins.
        tokens, labels = tokens + new, [*labels, NO_TARGET, *new[1:]]
    yield tokens, labels


def packed(texts: list[bytes], block: int) -> Dataset:
    """A map-style data set with the columns that a causal language model of transformers takes."""
    tokens, labels = zip(*pack(texts, block), strict=True)
    return Dataset.from_dict({"input_ids": tokens, "labels": labels})


def collate(rows: list[dict[str, list[int]]]) -> dict[str, Tensor]:
    """Pad to the longest row; all tensors int64, shape (rows, longest)."""
    tokens = [torch.tensor(row["input_ids"]) for row in rows]
    labels = [torch.tensor(row["labels"]) for row in rows]
    return {
        "input_ids": pad_sequence(tokens, batch_first=True, padding_value=END_OF_TEXT),
        "attention_mask": pad_sequence([torch.ones_like(row) for row in tokens], batch_first=True),
        "labels": pad_sequence(labels, batch_first=True, padding_value=NO_TARGET),
    }


def targets(batch: dict[str, Tensor]) -> int:
    """How many tokens the model's loss is the mean of."""
    return int((batch["labels"][:, 1:] != NO_TARGET).sum())


def hits(logits: Tensor, batch: dict[str, Tensor]) -> int:
    """How many of them the model guesses."""
    return int((logits[:, :-1].argmax(-1) == batch["labels"][:, 1:]).sum())


def build(shape: dict[str, int]) -> GPT2LMHeadModel:
    """Random weights, dropout as GPT-2 has it, its head tied to the embedding."""
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY,
            bos_token_id=END_OF_TEXT,
            eos_token_id=END_OF_TEXT,
            # Its gradients repeat bit for bit on every device; those of a fused kernel need not.
            attn_implementation="eager",
            **shape,
        )
    )
    # What it would take anyway, with a warning: the cross entropy of every next token.
    model.loss_type = "ForCausalLM"
    return model


def train(ctx: everstep.RankContext) -> None:
    """Runs on every rank."""
    config = ctx.config
    model = build(config["model"]).to(ctx.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["learning_rate"], weight_decay=0.1)
    scheduler = get_cosine_schedule_with_warmup(optimizer, config["warm_up_steps"], config["steps"])

    dataset = packed(docstrings(), model.config.n_positions)
    data = everstep.Microbatches(dataset, size=config["rows_per_microbatch"], collate_fn=collate)
    run = ctx.begin(model=model, optimizer=optimizer, scheduler=scheduler, data=data, steps=config["steps"])

    for step in run:
        for batch in step:
            batch = {name: tensor.to(ctx.device) for name, tensor in batch.items()}
            output = model(**batch)
            weight = targets(batch)
            step.backward(output.loss, weight=weight)
            step.record("accuracy", hits(output.logits, batch) / weight, weight=weight)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()

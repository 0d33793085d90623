"""GPT-2 of Hugging Face: rows and labels, a head that counts once, exact weights, and a kill by the command line."""

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from everstep.examples import hf_gpt2
from everstep.examples.hf_gpt2 import END_OF_TEXT, NO_TARGET
from everstep.orchestrator.cli import main
from torch.nn import functional as F

from .local import EXAMPLES, LOCALLY

SHAPE = {"n_layer": 1, "n_embd": 32, "n_head": 2, "n_positions": 64}


def test_rows_hold_whole_texts_and_long_ones_are_cut() -> None:
    texts = [b"ab", b"cde", b"fghijklmnop", b"q"]
    rows = list(hf_gpt2.pack(texts, block=8))
    end = END_OF_TEXT
    assert [tokens for tokens, _ in rows] == [[*b"ab", end, *b"cde", end], [*b"fghijkl", end], [*b"q", end]]
    assert [labels for _, labels in rows] == [
        [NO_TARGET, *b"b", end, NO_TARGET, *b"de", end],
        [NO_TARGET, *b"ghijkl", end],
        [NO_TARGET, end],
    ]


def test_padding_is_neither_seen_nor_a_target() -> None:
    dataset = hf_gpt2.packed([b"abc", b"defghij"], block=8)
    batch = hf_gpt2.collate([dataset[0], dataset[1]])
    assert batch["input_ids"].shape == (2, 8)
    assert batch["attention_mask"].tolist() == [[1] * 4 + [0] * 4, [1] * 8]
    assert (batch["labels"][0, 4:] == NO_TARGET).all()
    model = hf_gpt2.build(SHAPE).eval()
    alone = hf_gpt2.collate([dataset[0]])
    assert torch.allclose(model(**batch).logits[0, :4], model(**alone).logits[0], atol=1e-6)


def test_the_models_loss_is_the_mean_over_the_targets_that_weigh_it() -> None:
    dataset = hf_gpt2.packed([b"abc", b"defghij", b"k"], block=8)
    batch = hf_gpt2.collate([dataset[place] for place in range(len(dataset))])
    output = hf_gpt2.build(SHAPE).eval()(**batch)
    kept = batch["labels"][:, 1:].flatten()
    total = F.cross_entropy(output.logits[:, :-1].flatten(0, 1), kept, ignore_index=NO_TARGET, reduction="sum")
    assert output.loss.item() * hf_gpt2.targets(batch) == pytest.approx(total.item(), rel=1e-5)
    assert hf_gpt2.targets(batch) == 3 + 7 + 1


def test_a_hit_is_the_next_token_guessed_where_it_is_a_target() -> None:
    dataset = hf_gpt2.packed([b"abc", b"defghij"], block=8)
    batch = hf_gpt2.collate([dataset[0], dataset[1]])
    right = F.one_hot(batch["input_ids"].roll(-1, dims=1), hf_gpt2.VOCABULARY)
    assert hf_gpt2.hits(right, batch) == hf_gpt2.targets(batch) == 3 + 7
    right[1, 2] = right[1, 2].roll(1)
    assert hf_gpt2.hits(right, batch) == 3 + 7 - 1


def test_the_head_is_tied_and_trained_once() -> None:
    model = hf_gpt2.build(SHAPE)
    assert model.lm_head.weight is model.transformer.wte.weight
    assert "lm_head.weight" not in dict(model.named_parameters())


def test_a_kill_changes_nothing_by_the_command_line(tmp_path: Path) -> None:
    shape = ", ".join(f"{name}: {value}" for name, value in SHAPE.items())
    settings = [
        *LOCALLY,
        "scaling.ranks=[1, 2]",
        "elastic.microbatches_per_step=4",
        "elastic.chaos=[{step: 2, replica: 1, point: in_backward}]",
        "config.steps=4",
        f"config.model={{{shape}}}",
    ]
    arguments = ["run", EXAMPLES / "hf_gpt2.yaml", *settings, "--json", tmp_path / "metrics.json"]
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == "identical: yes"
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert len(metrics["faults_fired"]) == len(metrics["recoveries"]) == 1
    assert metrics["world"] == 1
    assert metrics["numbers"] == metrics["undisturbed"]["numbers"]
    assert 0 < metrics["numbers"]["accuracy"] < 1

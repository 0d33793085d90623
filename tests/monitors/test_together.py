"""The loop of docs/stability.md: a model that falls ill is named by its readings, through a save and a rollback."""

import json
import re
from pathlib import Path

import torch
from everstep.examples.gpt import GPTConfig
from everstep.examples.moe import moe_gpt
from everstep.monitors import envelope, signs
from torch import nn

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "stability.md"


def drift(model: nn.Module, step: int) -> None:
    """Random updates of one size of what is watched; those of layer 1 keep to one direction from step 2000 on."""
    generator = torch.Generator().manual_seed(step)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if not name.endswith(("qkv.weight", "router.weight")):
                continue
            update = torch.randn(weight.shape, generator=generator)
            if step >= 2000 and name == "blocks.1.attention.qkv.weight":
                update = torch.outer(torch.randn(len(weight), generator=generator), torch.ones(weight.shape[1]))
            weight += 1e-3 * update


def test_the_loop_of_the_documents_names_the_layer_and_the_fault(capsys) -> None:
    (loop,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    torch.manual_seed(0)
    model = moe_gpt(GPTConfig(vocab_size=16, block=8, layers=2, width=16, heads=2))
    scope = {"model": model, "batches": range(2401), "train": drift}
    exec(loop, scope)
    alarms = scope["alarms"]
    assert {(one.layer, one.step) for one in alarms} == {("blocks.1.attention", 2300)}
    assert {one.head for one in alarms} == {0, 1}
    assert {one.fault for one in alarms} == {signs.PRECISION}
    assert signs.PRECISION in capsys.readouterr().out
    watch = envelope.loaded(json.loads(json.dumps(envelope.saved(scope["watch"]))))
    assert watch == scope["watch"]
    assert envelope.rolled_back(watch, 1950).outside == {}

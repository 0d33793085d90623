"""Queries and keys are found where common models have them, and what is found are the heads that a forward makes."""

import pytest
import torch
from everstep.examples.gpt import GPT, GPTConfig
from everstep.monitors.discovery import find_projections, find_routers
from everstep.monitors.projections import Part, fused, separate
from torch import nn


class Conv1D(nn.Module):
    """GPT-2's: (in, out)."""

    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(inputs, outputs))


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))


class Gpt2Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.head_dim = 4, 3
        self.c_attn = Conv1D(36, 12)


class LlamaAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head_dim = 3
        self.q_proj = nn.Linear(12, 12, bias=False)
        self.k_proj = nn.Linear(12, 6, bias=False)
        self.q_norm, self.k_norm = RMSNorm(3), RMSNorm(3)


def block(norm: str, name: str, attention: nn.Module) -> nn.Module:
    made = nn.Module()
    made.add_module(norm, RMSNorm(12))
    made.add_module(name, attention)
    return nn.ModuleList([made])


def test_the_example_gpt() -> None:
    found = find_projections(GPT(GPTConfig(layers=2, width=16, heads=4)))
    assert [one.layer for one in found] == ["blocks.0.attention", "blocks.1.attention"]
    name = "blocks.0.attention.qkv.weight"
    assert (found[0].query, found[0].key) == (Part(name, (0, 4, 8, 12)), Part(name, (16, 20, 24, 28)))
    assert found[0].norm == "blocks.0.attention_norm.weight"


def test_gpt2() -> None:
    (found,) = find_projections(block("ln_1", "attn", Gpt2Attention()))
    assert found.query == Part("0.attn.c_attn.weight", (0, 3, 6, 9), transposed=True)
    assert found.key == Part("0.attn.c_attn.weight", (12, 15, 18, 21), transposed=True)
    assert found.norm == "0.ln_1.weight"


def test_llama_with_grouped_heads_and_norms_of_heads() -> None:
    (found,) = find_projections(block("input_layernorm", "self_attn", LlamaAttention()))
    assert found.query == Part("0.self_attn.q_proj.weight", (0, 3, 6, 9), scale="0.self_attn.q_norm.weight")
    assert found.key == Part("0.self_attn.k_proj.weight", (0, 3), scale="0.self_attn.k_norm.weight")
    assert [found.key_head(head) for head in range(4)] == [0, 0, 1, 1]


@pytest.mark.parametrize("norm_first", [True, False])
def test_torch(norm_first: bool) -> None:
    (found,) = find_projections(nn.TransformerEncoderLayer(12, 4, norm_first=norm_first))
    assert found.query == Part("self_attn.in_proj_weight", (0, 3, 6, 9))
    # What reads its own input and not that of a norm has nothing to fold.
    assert found.norm == ("norm1.weight" if norm_first else None)


def test_groups_lie_as_a_view_would_have_them() -> None:
    rows = torch.arange(2 * 4 * 3).view(2, 4, 3)
    found = fused("a", "w", 24, 4, 2, order="groups")
    assert found.query.starts == tuple(rows[:, :2, 0].flatten().tolist())
    assert found.key.starts == tuple(rows[:, 2, 0].tolist())


def test_how_many_keys_a_fused_matrix_has_follows_from_its_shape_or_a_name() -> None:
    attention = nn.Module()
    attention.n_heads, attention.qkv = 6, nn.Linear(12, 36)
    model = nn.ModuleList([attention])
    assert len(find_projections(model)[0].key.starts) == 6
    attention.n_kv_heads = 3
    assert find_projections(model)[0].key.starts == (18, 21, 24)
    attention.head_dim, attention.n_kv_heads = 3, 1
    assert find_projections(model)[0].key.starts == (18, 21, 24)


def test_what_is_not_found_or_does_not_divide() -> None:
    with pytest.raises(ValueError, match="no queries and keys are found in Linear: no module has q_proj/k_proj"):
        find_projections(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="37 outputs do not divide into 4 heads"):
        fused("a", "w", 37, 4)
    with pytest.raises(ValueError, match="12 and 5 outputs do not divide into 4 heads"):
        separate("a", "q", "k", (12, 5), 4)
    silent = nn.Module()
    silent.q_proj, silent.k_proj = nn.Linear(4, 4), nn.Linear(4, 4)
    with pytest.raises(ValueError, match=r"how many heads q_proj\.weight has"):
        find_projections(silent)
    assert find_projections(silent, heads=2)[0].query.starts == (0, 2)


def test_routers() -> None:
    layer = nn.Module()
    layer.gate, layer.experts = nn.Linear(4, 3, bias=False), nn.ModuleList([nn.Linear(4, 4)])
    (found,) = find_routers(nn.Sequential(layer))
    assert (found.layer, found.parameter) == ("0", "0.gate.weight")
    with pytest.raises(ValueError, match="no routers are found in Linear"):
        find_routers(nn.Linear(2, 2))

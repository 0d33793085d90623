"""The terms of the update, against dense matrices in float64, and when they are looked at."""

import pytest
import torch
from everstep.examples.gpt import GPT, GPTConfig
from everstep.monitors.attention import AttentionMonitor, Schedule, compare, take, update_terms
from everstep.monitors.discovery import find_projections
from everstep.monitors.projections import Part, Projections, share
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def gpt() -> GPT:
    torch.manual_seed(0)
    return GPT(GPTConfig(vocab_size=16, block=8, layers=2, width=16, heads=4))


@given(st.integers(2, 40), st.integers(1, 8), st.integers(0, 99))
def test_cores_have_the_singular_values_of_the_dense_terms(d: int, h: int, seed: int) -> None:
    """Also where d is less than 2h."""
    q, k, dq, dk = (drawn(seed + place, 1, d, h) for place in (0, 100, 200, 300))
    dq, dk = dq * 1e-3, dk * 1e-3
    found = update_terms(q, k, q + dq, k + dk)
    dq, dk = (q + dq) - q, (k + dk) - k
    dense = {"delta2": dq @ k.mT + q @ dk.mT, "delta3": dq @ dk.mT, "dq": dq, "dk": dk}
    for name, matrix in dense.items():
        expected, values = torch.linalg.svdvals(matrix[0]), torch.linalg.svdvals(found[name][0])
        count = min(len(expected), len(values))
        torch.testing.assert_close(values[:count], expected[:count], rtol=1e-9, atol=1e-13)
        assert float(expected[count:].sum() + values[count:].sum()) < 1e-12


def test_scales_and_grouped_heads_make_the_form_of_the_scores() -> None:
    model = nn.Module()
    for name, shape in {"q": (8, 6), "k": (4, 6), "norm": (6,), "qs": (2,), "ks": (4,)}.items():
        model.register_parameter(name, nn.Parameter(drawn(len(name), *shape)))
    where = Projections("a", 2, Part("q", (0, 2, 4, 6), scale="qs"), Part("k", (0, 2), scale="ks"), "norm")
    x, y = drawn(7, 6), drawn(8, 6)
    q, k, norm, qs, ks = (getattr(model, name).detach() for name in ("q", "k", "norm", "qs", "ks"))
    queries, keys = (q @ (norm * x)).view(4, 2) * qs, ((k @ (norm * y)) * ks).view(2, 2)
    sample = take(model, [where], 0)
    for head in range(4):
        wq, wk = sample.heads["a", head].folded(torch.float64)
        torch.testing.assert_close(x @ wq @ wk.mT @ y, queries[head] @ keys[head // 2])


def test_a_sample_is_a_copy_and_an_update_of_one_direction_shows() -> None:
    model = gpt()
    where = find_projections(model)
    before = take(model, where, 10)
    with torch.no_grad():
        weight = model.blocks[1].attention.qkv.weight
        weight[4:8] += 0.01 * torch.outer(torch.ones(4), torch.arange(16.0))
    readings = {(one.layer, one.head): one for one in compare(before, take(model, where, 20))}
    assert len(readings) == 8
    changed = readings["blocks.1.attention", 1].numbers
    assert changed["dq.effective_rank"] == pytest.approx(1, abs=1e-4)
    assert changed["delta2.effective_rank"] == pytest.approx(1, abs=1e-4)
    assert changed["dk.norm"] == changed["delta3.norm"] == 0
    assert readings["blocks.0.attention", 1].numbers["delta2.norm"] == 0
    with pytest.raises(ValueError, match="give an earlier"):
        compare(before, before)


def train(model: nn.Module) -> None:
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(1e-3)


def test_the_monitor_compares_by_its_schedule() -> None:
    model = gpt()
    monitor = AttentionMonitor(model, find_projections(model), Schedule(every=5, lag=2))
    seen = {}
    for step in range(12):
        train(model)
        seen[step] = len(monitor.observe(step))
    assert {step: count for step, count in seen.items() if count} == {5: 8, 10: 8}


def test_after_a_rollback_nothing_is_compared_with_lost_steps() -> None:
    model = gpt()
    monitor = AttentionMonitor(model, find_projections(model), Schedule(every=5, lag=2))
    for step in range(4):
        monitor.observe(step)
    train(model)
    # Back to the state after step 1: step 3 is taken anew.
    assert [len(monitor.observe(step)) for step in (2, 3, 4, 5)] == [0, 0, 0, 8]
    # Forward to a state from elsewhere: the first sample that is there is another one's.
    monitor.observe(8)
    assert monitor.observe(15) == ()


def test_who_comes_to_other_heads_leaves_them_out_once() -> None:
    model = gpt()
    monitor = AttentionMonitor(model, find_projections(model), Schedule(every=5, lag=2))
    monitor.divide(0, 2)
    monitor.observe(3)
    monitor.divide(1, 4)
    assert monitor.observe(5) == ()
    monitor.observe(8)
    assert [(one.layer, one.head) for one in monitor.observe(10)] == [
        ("blocks.0.attention", 1),
        ("blocks.1.attention", 1),
    ]


@given(st.integers(0, 40), st.integers(1, 7), st.integers(1, 5), st.integers(0, 20))
def test_together_they_come_to_everything_once(count: int, peers: int, turns: int, first: int) -> None:
    parts = [share(range(count), place, peers, first + turn, turns) for place in range(peers) for turn in range(turns)]
    assert sorted(item for part in parts for item in part) == list(range(count))


def test_what_cannot_be_compared_is_refused() -> None:
    model = gpt()
    with pytest.raises(ValueError, match="shorter than lag=10"):
        Schedule(every=5, lag=10)
    with pytest.raises(ValueError, match="has no parameter nowhere"):
        take(model, [Projections("a", 4, Part("nowhere", (0,)), Part("nowhere", (4,)))], 0)
    with pytest.raises(ValueError, match="too few for 1 heads of 40"):
        take(model, [Projections("a", 40, Part("head.weight", (0,)), Part("head.weight", (0,)))], 0)
    with pytest.raises(ValueError, match="place 2 of 2"):
        AttentionMonitor(model, find_projections(model), place=2, peers=2)

"""What exact means: no split, no history and no size of the world changes a bit; and the bits are the right ones."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from everstep.actors.rank.order import SampleOrder, mix
from everstep.actors.rank.rng import seed_everything
from everstep.conf.chaos import Fault, FaultPoint
from everstep.orchestrator.view import Phase
from torch import nn

from .harness import MICROBATCHES, NARROW, STEPS, Outcome, assert_as_if_undisturbed, run


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_size_of_the_world_changes_no_bit(ranks: int, undisturbed: Outcome, tmp_path: Path) -> None:
    outcome = run(tmp_path, ranks=ranks)
    assert outcome.weights == undisturbed.weights
    assert outcome.rates == undisturbed.rates
    assert samples_of(outcome) == samples_of(undisturbed)


def test_buckets_change_no_bit(undisturbed: Outcome, tmp_path: Path) -> None:
    outcome = run(tmp_path, ranks=2, width=NARROW, bucket_mib=0.01)
    assert outcome.weights == undisturbed.weights


def test_losses_are_those_of_a_plain_loop(undisturbed: Outcome) -> None:
    """Written without any of the step machinery: one process, one loop over the microbatches, sums in float64."""
    losses = plain_losses()
    reported = {step: loss for step, seen in undisturbed.rates.items() for _, loss in seen}
    assert set(reported) == set(range(STEPS))
    for step, loss in enumerate(losses):
        assert reported[step] == pytest.approx(loss, rel=2e-6), step


def test_a_step_that_does_not_fit_the_grid_is_done_again_alike(tmp_path: Path) -> None:
    undisturbed = run(tmp_path / "four", ranks=4, burst=3)
    alone = run(tmp_path / "one", ranks=1, burst=3)
    faults = [Fault(3, 2, point=FaultPoint.IN_VOTE)]
    killed = run(tmp_path / "killed", ranks=4, burst=3, chaos=faults)
    for outcome in (undisturbed, alone, killed):
        assert outcome.state.phase is Phase.SUCCEEDED
        assert outcome.voids == {3}
        assert outcome.weights == undisturbed.weights
    computed = Counter(pair for pairs in undisturbed.computed.values() for pair in pairs)
    assert {pair for pair, count in computed.items() if count == 2} == {(3, index) for index in range(MICROBATCHES)}
    assert killed.state.faults_fired


def test_float_survives_too_and_is_close(undisturbed: Outcome, tmp_path: Path) -> None:
    faults = [Fault(3, 2, point=FaultPoint.IN_BACKWARD)]
    outcome = run(tmp_path, ranks=4, chaos=faults, reduction="float")
    assert outcome.state.phase is Phase.SUCCEEDED
    assert len(outcome.state.faults_fired) == 1
    assert outcome.weights != undisturbed.weights
    for step, seen in undisturbed.rates.items():
        ((rate, loss),) = seen
        for other_rate, other_loss in outcome.rates[step]:
            assert other_rate == rate
            assert other_loss == pytest.approx(loss, rel=1e-4)


def test_more_ranks_than_microbatches(tmp_path: Path) -> None:
    few = {"microbatches_per_step": 2}
    alone = run(tmp_path / "one", ranks=1, **few)
    faults = [Fault(3, 0, point=FaultPoint.IN_BACKWARD)]
    crowd = run(tmp_path / "four", ranks=4, chaos=faults, **few)
    assert crowd.state.phase is Phase.SUCCEEDED
    assert len(crowd.state.faults_fired) == 1
    assert crowd.weights == alone.weights


def test_the_fault_of_a_matrix_case_would_be_missed_if_it_did_not_fire(undisturbed: Outcome, tmp_path: Path) -> None:
    """The check that all scenarios share fails for a run without its fault."""
    faults = [Fault(STEPS + 5, 2, point=FaultPoint.IN_BACKWARD)]
    outcome = run(tmp_path, ranks=2, chaos=faults)
    with pytest.raises(AssertionError):
        assert_as_if_undisturbed(outcome, undisturbed, faults, lost=1)


def samples_of(outcome: Outcome) -> dict[int, Any]:
    """In the first step a world of several ranks also probes a microbatch, so there only the samples count."""
    return {step: counted if step else set(counted) for step, counted in outcome.samples.items()}


def plain_losses() -> list[float]:
    """Weighted mean loss of every step of the harness's training."""
    torch.set_num_threads(1)
    seed_everything(mix(0))
    model = nn.Sequential(
        nn.Linear(24, NARROW), nn.ReLU(), nn.Dropout(0.2), nn.Linear(NARROW, NARROW), nn.Linear(NARROW, 2)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step))
    order = SampleOrder(50, 3, MICROBATCHES, seed=0, shuffle=True)
    losses = []
    for step in range(STEPS):
        sums = [torch.zeros_like(parameter, dtype=torch.float64) for parameter in model.parameters()]
        total, weights = 0.0, 0.0
        for index in range(MICROBATCHES):
            ids = order.samples(step, index)
            items = [_sample(item) for item in ids]
            seed_everything(mix(0, step, index))
            x = torch.stack([item["x"] for item in items])
            y = torch.tensor([item["y"] for item in items])
            loss = nn.functional.cross_entropy(model(x), y)
            weight = sum(ids) % 7
            if not weight:
                continue
            model.zero_grad()
            loss.backward()
            for held, parameter in zip(sums, model.parameters(), strict=True):
                held += parameter.grad.double() * weight  # type: ignore[union-attr]
            total += loss.item() * weight
            weights += weight
        for held, parameter in zip(sums, model.parameters(), strict=True):
            parameter.grad = (held / weights).float()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        losses.append(total / weights)
    return losses


def _sample(item: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(item)
    x = torch.randn(24, generator=generator)
    return {"x": x, "y": int(x[0] > 0)}

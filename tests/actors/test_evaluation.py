"""Evaluations: every sample once, as hard to kill as a step, and nothing that training would notice."""

import copy
import gc
from typing import Any

import pytest
import torch
from everstep.actors.messages import Report
from everstep.actors.rank.data import Microbatches
from everstep.conf.elastic import Reduction
from everstep.conf.errors import LoopError
from torch import nn

from .rank_bench import B, Bench, Dying, misuse, weights_of

both = pytest.mark.parametrize("reduction", list(Reduction))


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(4)
    return nn.Linear(3, 1)


def evaluate(bench: Bench, length: int = 7, size: int = 2) -> dict[str, float]:
    data = Microbatches([float(sample) for sample in range(length)], size, collate_fn=list)
    return bench.run.evaluate(data, lambda batch: {"sum": sum(batch), "mean": (sum(batch) / len(batch), len(batch))})


def test_every_sample_is_evaluated_once_and_the_last_microbatch_may_be_shorter() -> None:
    bench = Bench(steps=1).open(mine=None)
    train_and_evaluate(bench)
    assert evaluate(bench) == {"sum": 21 / 4, "mean": 3.0}
    assert evaluate(bench, length=1, size=9) == {"sum": 0.0, "mean": 0.0}


def train_and_evaluate(bench: Bench, each: int = 0) -> None:
    for step in bench.run:
        for batch in step:
            step.backward(bench.loss(batch))
        with torch.no_grad():
            for parameter in bench.model.parameters():
                parameter -= 0.01 * parameter.grad  # type: ignore[operator]
        for _ in range(each):
            evaluate(bench)


def test_evaluations_do_not_disturb_training(model: nn.Module) -> None:
    without = Bench(steps=3, model=copy.deepcopy(model)).open()
    train_and_evaluate(without)
    bench = Bench(steps=3, model=copy.deepcopy(model)).open()
    train_and_evaluate(bench, each=2)
    assert all(torch.equal(a, b) for a, b in zip(weights_of(bench), weights_of(without), strict=True))
    assert bench.ledger.transaction.position.step == 3


@pytest.mark.parametrize("fails", [4, 5, 6, 7])
def test_an_evaluation_survives_a_dead_collective(fails: int, model: nn.Module) -> None:
    """After the three all-reduces of a step come sum, maximum, numbers and vote of the evaluation."""
    bench = Bench(steps=1, model=model, communicators=[Dying(fails)])

    def reopen(report: Report) -> None:
        assert report.work is not None
        bench.open_again(report)

    bench.on_report = reopen
    bench.open()
    train_and_evaluate(bench)
    assert evaluate(bench)["mean"] == 3.0
    assert len([message for message in bench.sent if isinstance(message, Report)]) == 1
    assert bench.engine.computed == B + 4, "nothing was computed again"


def test_models_are_in_evaluation_mode_only_meanwhile() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(), nn.Linear(3, 1))
    model[0].eval()
    bench = Bench(steps=1, model=model).open()
    seen = []

    def look(batch: list[float]) -> dict[str, float]:
        seen.append((model.training, model[1].training, torch.is_grad_enabled()))
        return {"a": 0.0}

    train_and_evaluate(bench)
    bench.run.evaluate(Microbatches([1.0], 1, collate_fn=list), look)
    assert seen == [(False, False, False)]
    assert (model.training, model[0].training, model[1].training) == (True, False, True)


def test_in_the_middle_of_a_step_nothing_is_evaluated() -> None:
    assert "before the step's batches were consumed" in misuse(lambda bench, step, batch: evaluate(bench))


@pytest.mark.parametrize("said", [None, 3.0, {"a": "high"}, {"a": torch.zeros(2)}, {3: 1.0}])
def test_eval_fn_must_return_numbers(said: Any) -> None:
    bench = Bench(steps=1).open()
    train_and_evaluate(bench)
    with pytest.raises(LoopError):
        bench.run.evaluate(Microbatches([1.0], 1, collate_fn=list), lambda batch: said)


def test_a_loader_is_kept_for_as_long_as_its_data_and_no_longer() -> None:
    """A loop that makes its validation data anew for each evaluation must not collect loaders, nor their workers."""
    bench = Bench(steps=1).open()
    train_and_evaluate(bench, each=2)
    gc.collect()
    assert len(bench.run._loaders) == 0
    data = Microbatches([1.0, 2.0], 1, collate_fn=list)
    first = bench.run._loader(data)
    for _ in range(2):
        bench.run.evaluate(data, lambda batch: {"sum": sum(batch)})
        assert bench.run._loader(data) is first

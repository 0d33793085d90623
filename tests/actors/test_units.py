"""What a unit of work is besides its gradients: numbers, own backwards, skips, stops, poison."""

import contextlib
import copy
import math
from typing import Any

import pytest
import torch
from everstep.actors.messages import Report
from everstep.actors.rank.training import majority
from everstep.conf.elastic import OnTrouble, Reduction
from everstep.conf.errors import LoopError
from torch import nn

from .rank_bench import B, Bench, Dying, misuse, weights_of

both = pytest.mark.parametrize("reduction", list(Reduction))


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(4)
    return nn.Linear(3, 1)


# --- recorded numbers


def test_a_number_is_the_weighted_mean_over_the_microbatches_that_have_it() -> None:
    bench = Bench(steps=1).open()
    for step in bench.run:
        for batch in step:
            index = batch[0] // 2
            step.record("always", index, weight=index + 1)
            step.backward(bench.loss(batch))
            if index % 2:
                step.record("sometimes", torch.tensor(10.0 * index))
    assert step.numbers == {"always": (0 * 1 + 1 * 2 + 2 * 3 + 3 * 4) / 10, "sometimes": 20.0}


def test_a_number_whose_weights_are_all_0_is_unknown_and_one_that_is_nan_says_so() -> None:
    bench = Bench(steps=1).open()
    for step in bench.run:
        for batch in step:
            step.record("nothing", 1.0, weight=0)
            step.record("bad", math.nan if batch[0] == 0 else 1.0)
            step.record("unweighted bad", math.nan if batch[0] == 0 else 1.0, weight=batch[0])
            step.backward(bench.loss(batch))
    assert math.isnan(step.numbers["nothing"])
    assert math.isnan(step.numbers["bad"])
    assert step.numbers["unweighted bad"] == 1.0


def test_numbers_of_a_dead_collective_are_not_lost(model: nn.Module) -> None:
    """The fourth all-reduce is the vote: with numbers there is one more before it."""
    for fails in (1, 2, 3, 4):
        bench = Bench(steps=1, model=copy.deepcopy(model), communicators=[Dying(fails)])
        bench.on_report = lambda report, bench=bench: bench.open(2) and None  # type: ignore[misc]
        bench.open()
        for step in bench.run:
            for batch in step:
                step.record("first", batch[0])
                step.backward(bench.loss(batch))
        assert step.numbers == {"first": 3.0}
        assert len([message for message in bench.sent if isinstance(message, Report)]) == 1


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (lambda step: (step.record("a", 1), step.record("a", 2)), "a was recorded twice for microbatch 0 of step 0"),
        (lambda step: step.record("a", torch.zeros(2)), "a has shape (2,): record a single number"),
        (lambda step: step.record("a", "high"), "a='high' is no number"),
        (lambda step: step.record("", 1), "a recorded number needs a name"),
        (lambda step: step.record("a", 1, weight=-1), "weight=-1 must be a finite number that is not negative (of a)"),
    ],
)
def test_what_is_no_number_is_refused(record: Any, said: str) -> None:
    assert said in misuse(lambda bench, step, batch: record(step))


def test_outside_of_a_microbatch_there_is_nothing_to_record_for() -> None:
    bench = Bench(steps=1).open()
    for step in bench.run:
        with pytest.raises(LoopError, match="outside of a microbatch"):
            step.record("a", 1)
        for batch in step:
            step.backward(bench.loss(batch))


# --- own backwards


@both
def test_a_backward_in_parts_is_one_microbatch(reduction: Reduction, model: nn.Module) -> None:
    """Mixed with the short form, which weighs the seed of the backward instead of the gradient."""

    def run(parts: bool) -> list[torch.Tensor]:
        bench = Bench(steps=2, model=copy.deepcopy(model), reduction=reduction).open()
        for step in bench.run:
            for batch in step:
                # Powers of two weigh alike in both forms, to the bit.
                weight = 2.0 ** (batch[0] % 3)
                loss = bench.loss(batch)
                if parts and batch[0] % 4:
                    with step.microbatch(weight) as microbatch:
                        (0.5 * loss).backward(retain_graph=True)
                        (0.5 * loss).backward()
                        microbatch.loss = loss
                else:
                    step.backward(loss, weight)
            with torch.no_grad():
                for parameter in bench.model.parameters():
                    parameter -= 0.01 * parameter.grad  # type: ignore[operator]
        assert [row[0] for row in bench.applied] == [0, 1]
        assert all(math.isfinite(loss) for _, loss, _ in bench.applied)
        return weights_of(bench)

    for mine, theirs in zip(run(True), run(False), strict=True):
        assert torch.equal(mine, theirs) if reduction is Reduction.EXACT else torch.allclose(mine, theirs)


def test_weight_0_contributes_nothing_whatever_its_own_backward_left(model: nn.Module) -> None:
    bench = Bench(steps=1, model=model).open()
    for step in bench.run:
        for batch in step:
            spoiled = batch[0] == 2
            with step.microbatch(0 if spoiled else 1) as microbatch:
                (bench.loss(batch) * (math.nan if spoiled else 1.0)).backward()
                microbatch.loss = torch.tensor(math.nan) if spoiled else bench.loss(batch).detach()
    assert math.isfinite(step.loss)
    assert step.weight == B - 1
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())  # type: ignore[union-attr]


def test_a_loss_that_is_not_told_is_unknown(model: nn.Module) -> None:
    bench = Bench(steps=1, model=model).open()
    for step in bench.run:
        for batch in step:
            with step.microbatch():
                bench.loss(batch).backward()
    assert math.isnan(step.loss)
    assert step.skipped is None


def test_a_microbatch_is_skipped_only_on_purpose(model: nn.Module) -> None:
    bench = Bench(steps=1, model=model).open()
    for step in bench.run:
        for batch in step:
            if batch[0] == 0:
                step.skip("it is too short")
            else:
                step.backward(bench.loss(batch))
    assert step.weight == B - 1


def test_a_skip_needs_a_reason() -> None:
    assert "needs a reason" in misuse(lambda bench, step, batch: step.skip(""))


def test_an_exception_that_is_caught_leaves_no_half_sum() -> None:
    def fail(_: torch.Tensor) -> None:
        raise RuntimeError("out of memory")

    def swallow(bench: Bench, step: Any, batch: list[int]) -> None:
        loss = bench.loss(batch)
        loss.register_hook(fail)
        with contextlib.suppress(RuntimeError):
            step.backward(loss)

    assert "failed and its exception was caught" in misuse(swallow)


# --- verdicts


@both
def test_a_step_that_is_not_finite_is_skipped_whole(reduction: Reduction, model: nn.Module) -> None:
    bench = Bench(steps=3, model=model, reduction=reduction, on_nonfinite=OnTrouble.SKIP).open()
    skipped = []
    for step in bench.run:
        for batch in step:
            spoiled = step.number == 1 and batch[0] == 10
            step.backward(bench.loss(batch) * (math.inf if spoiled else 1.0))
        skipped.append(step.skipped)
        empty = all(parameter.grad is None for parameter in model.parameters())
        assert empty is (step.number == 1)
    assert [reason is None for reason in skipped] == [True, False, True]
    assert "not finite" in str(skipped[1])
    assert [math.isnan(loss) for _, loss, _ in bench.applied] == [False, True, False]


def test_a_step_without_weight_is_skipped_too_if_that_is_wanted() -> None:
    bench = Bench(steps=2, on_nonfinite=OnTrouble.SKIP).open()
    for step in bench.run:
        for batch in step:
            step.backward(bench.loss(batch), weight=step.number)
        assert (step.skipped is None) is (step.number == 1)


def test_one_rank_that_stops_makes_the_step_under_way_the_last() -> None:
    bench = Bench(steps=9).open()
    for step in bench.run:
        for batch in step:
            if step.number == 2:
                bench.run.stop()
            step.backward(bench.loss(batch))
    assert [number for number, _, _ in bench.applied] == [0, 1, 2]
    assert bench.run.finished


def test_a_stop_between_steps_makes_the_next_one_the_last() -> None:
    bench = Bench(steps=9).open()
    for step in bench.run:
        for batch in step:
            step.backward(bench.loss(batch))
        if step.number == 2:
            bench.run.stop()
    assert [number for number, _, _ in bench.applied] == [0, 1, 2, 3]


def test_nobody_computes_poison_and_it_counts_as_weight_0(model: nn.Module) -> None:
    bench = Bench(steps=1, model=model).open(poison=frozenset({1, 3}))
    seen = []
    for step in bench.run:
        for batch in step:
            seen.append(batch[0] // 2)
            step.backward(bench.loss(batch), weight=2.0)
    assert seen == [0, 2]
    assert step.weight == 4.0
    assert bench.engine.computed == 2


# --- the probe


def test_the_majority_is_more_than_half() -> None:
    assert majority((1,)) == 1
    assert majority((1, 2)) is None
    assert majority((1, 2, 1)) == 1
    assert majority((1, 1, 2, 2)) is None
    assert majority((1, 2, 3)) is None


# --- what is trained may change


def test_a_layer_is_thawed_and_frozen_between_steps() -> None:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    model[0].requires_grad_(False)
    bench = Bench(steps=4, model=model).open()
    has = []
    for step in bench.run:
        for batch in step:
            step.backward(bench.loss(batch))
        has.append([parameter.grad is not None for parameter in model.parameters()])
        model[0].requires_grad_(step.number == 0)
        model[1].requires_grad_(step.number != 1)
        if step.number == 1:
            model[0].requires_grad_(True)
        if step.number == 2:
            model[1].requires_grad_(True)
    assert has == [[False, False, True, True], [True] * 4, [True, True, False, False], [False, False, True, True]]

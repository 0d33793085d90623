"""The two loops of a user: every step whole, every misuse named, and lost microbatches that simply appear."""

import copy
import math
import random
from typing import Any

import pytest
import torch
from everstep.actors.messages import Report, Resumed
from everstep.actors.rank.order import mix
from everstep.actors.rank.rng import seed_everything
from everstep.actors.rank.transaction import ProtocolError
from everstep.conf.elastic import Reduction
from everstep.conf.errors import LoopError, NonFiniteError
from everstep.policies.world import Generation, Position
from torch import nn

from .rank_bench import SEED, B, Bench, Dying, misuse, same, train

both = pytest.mark.parametrize("reduction", list(Reduction))


# --- a healthy run


@both
def test_every_microbatch_of_every_step_once_and_in_order(reduction: Reduction) -> None:
    bench = Bench(steps=3, reduction=reduction).open()
    seen = []
    for step in bench.run:
        for batch in step:
            seen.append((step.number, batch))
            step.backward(bench.loss(batch))
    expected = [(step, [2 * (4 * step + index), 2 * (4 * step + index) + 1]) for step in range(3) for index in range(B)]
    assert seen == expected
    assert [number for number, _, _ in bench.applied] == [0, 1, 2]
    assert bench.run.finished
    assert bench.engine.computed == 12
    assert bench.run.is_leader


@both
def test_the_gradient_is_the_weighted_mean_of_the_step(reduction: Reduction, model: nn.Module) -> None:
    bench = Bench(steps=1, model=model, reduction=reduction).open()
    weights = (1.0, 2.0, 0.5, 3.0)
    (gradients,) = train(bench, weights)
    twin = Bench(model=copy.deepcopy(model))
    with torch.no_grad():
        for parameter, gradient in zip(twin.model.parameters(), gradients, strict=True):
            parameter += 0.01 * gradient
    losses = [twin.loss([2 * index, 2 * index + 1]) for index in range(B)]
    mean = sum(weight * loss for weight, loss in zip(weights, losses, strict=True)) / sum(weights)
    mean.backward()  # type: ignore[union-attr]
    for parameter, gradient in zip(twin.model.parameters(), gradients, strict=True):
        torch.testing.assert_close(gradient, parameter.grad, rtol=1e-5, atol=1e-6)
    (_, loss, weight) = bench.applied[0]
    assert weight == 6.5
    assert loss == pytest.approx(mean.item(), rel=1e-6)  # type: ignore[union-attr]


def test_the_first_decision_in_a_generation_is_told_once(model: nn.Module) -> None:
    bench = Bench(steps=3, model=model).open()
    train(bench)
    (resumed,) = [message for message in bench.sent if isinstance(message, Resumed)]
    assert (resumed.generation, resumed.position) == (Generation(1, 1), Position(0))
    assert len(resumed.spans) == B
    assert resumed.reduced <= resumed.decided


def test_random_numbers_belong_to_the_microbatch_and_between_steps_to_the_step() -> None:
    def drawn(waste: int) -> tuple[list[Any], list[Any]]:
        bench = Bench().open()
        inside, between = [], []
        for step in bench.run:
            for batch in step:
                inside.append((float(torch.rand(())), random.random()))
                torch.rand(waste)
                step.backward(bench.loss(batch))
            between.append((float(torch.rand(())), random.random()))
            torch.rand(waste)
        return inside, between

    first, second = drawn(1), drawn(17)
    assert first == second

    def stream(*names: int) -> tuple[float, float]:
        seed_everything(mix(SEED, *names))
        return float(torch.rand(())), random.random()

    assert first[0] == [stream(step, index) for step in range(2) for index in range(B)]
    assert first[1] == [stream(step) for step in range(2)]


def test_weight_0_contributes_nothing_even_if_it_is_not_finite(model: nn.Module) -> None:
    bench = Bench(steps=1, model=model).open()
    for step in bench.run:
        for batch in step:
            loss = bench.loss(batch)
            last = batch == [6, 7]
            step.backward(loss * math.nan if last else loss, weight=0 if last else 2)
    assert bench.applied[0][2] == 6.0
    assert math.isfinite(bench.applied[0][1])


# --- misuse


@pytest.mark.parametrize("weight", [-1.0, math.nan, math.inf, "2", None])
def test_a_weight_that_is_none_is_refused(weight: Any) -> None:
    said = misuse(lambda bench, step, batch: step.backward(bench.loss(batch), weight=weight))
    assert f"weight={weight!r} must be a finite number that is not negative" in said


def test_a_loss_that_is_no_scalar_is_refused() -> None:
    said = misuse(lambda bench, step, batch: step.backward(bench.loss(batch).expand(3)))
    assert "the loss has shape (3,): step.backward needs a scalar" in said


def test_a_loss_of_one_element_is_a_scalar() -> None:
    bench = Bench(steps=1).open()
    for step in bench.run:
        for batch in step:
            step.backward(bench.loss(batch).reshape(1), weight=2)
    assert bench.run.finished


def test_a_loss_without_a_graph_is_refused() -> None:
    said = misuse(lambda bench, step, batch: step.backward(bench.loss(batch).detach()))
    assert "the loss has no graph" in said


@both
def test_a_second_backward_is_refused(reduction: Reduction) -> None:
    def twice(bench: Bench, step: Any, batch: list[int]) -> None:
        step.backward(bench.loss(batch))
        step.backward(bench.loss(batch))

    said = misuse(twice, reduction=reduction)
    assert said.startswith("step.backward was called a second time for microbatch 0 of step 0: each has one gradient")


@both
def test_a_bare_backward_is_refused(reduction: Reduction) -> None:
    def bare(bench: Bench, step: Any, batch: list[int]) -> None:
        bench.loss(batch).backward()  # type: ignore[no-untyped-call]

    said = misuse(bare, reduction=reduction)
    assert "use step.backward instead of loss.backward()" in said


@both
def test_a_bare_backward_beside_the_right_one_is_refused(reduction: Reduction) -> None:
    def both_ways(bench: Bench, step: Any, batch: list[int]) -> None:
        step.backward(bench.loss(batch))
        if batch == [2, 3]:
            bench.loss(batch).backward()  # type: ignore[no-untyped-call]

    said = misuse(both_ways, reduction=reduction)
    assert "has a gradient that step.backward(loss) did not make" in said


@both
def test_a_bare_backward_after_the_last_microbatch_of_a_step_is_refused(reduction: Reduction) -> None:
    def late(bench: Bench, step: Any, batch: list[int]) -> None:
        step.backward(bench.loss(batch))
        if batch == [6, 7]:
            bench.loss(batch).backward()  # type: ignore[no-untyped-call]

    misuse(late, reduction=reduction)


def test_accumulators_that_the_user_empties_are_noticed() -> None:
    """In float they stand in ``.grad``, where a habit may reach them."""

    def clean(bench: Bench, step: Any, batch: list[int]) -> None:
        bench.model.zero_grad(set_to_none=False)
        step.backward(bench.loss(batch))

    misuse(clean, reduction=Reduction.FLOAT)


@both
def test_a_habit_of_clearing_gradients_does_no_harm(reduction: Reduction, model: nn.Module) -> None:
    def trained(clear: bool) -> list[torch.Tensor]:
        bench = Bench(steps=2, model=copy.deepcopy(model), reduction=reduction).open()
        for step in bench.run:
            for batch in step:
                if clear:
                    bench.model.zero_grad()
                step.backward(bench.loss(batch))
        return [parameter.grad for parameter in bench.model.parameters() if parameter.grad is not None]

    for one, other in zip(trained(clear=True), trained(clear=False), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)


def test_a_microbatch_without_a_backward_is_refused() -> None:
    said = misuse(lambda bench, step, batch: None)
    assert "microbatch 0 of step 0 ended without step.backward(loss)" in said


def test_a_backward_outside_of_a_microbatch_is_refused() -> None:
    bench = Bench().open()
    for step in bench.run:
        with pytest.raises(LoopError, match="outside of a microbatch"):
            step.backward(torch.ones((), requires_grad=True))
        break


def test_figures_of_a_step_are_known_only_when_it_is_decided() -> None:
    bench = Bench(steps=1).open()
    for step in bench.run:
        for figure in ("loss", "weight"):
            with pytest.raises(LoopError, match=rf"step\.{figure} is known only after all batches of step 0"):
                getattr(step, figure)
        for batch in step:
            step.backward(bench.loss(batch))
        assert math.isfinite(step.loss)


def test_a_step_that_is_not_consumed_is_refused() -> None:
    bench = Bench().open()
    with pytest.raises(LoopError, match="step 0 was left before its batches were consumed"):
        for _ in bench.run:
            pass


def test_a_step_of_weight_0_is_refused() -> None:
    said = misuse(lambda bench, step, batch: step.backward(bench.loss(batch), weight=0))
    assert "all microbatches of step 0 have weight 0" in said


@both
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_ends_the_step_before_it_is_applied(bad: float, reduction: Reduction) -> None:
    bench = Bench(reduction=reduction).open()

    def go() -> None:
        for step in bench.run:
            for batch in step:
                loss = bench.loss(batch)
                step.backward(loss * bad if (step.number, batch) == (1, [12, 13]) else loss)

    with pytest.raises(NonFiniteError, match=r"microbatch \d of step 1 is not finite: .*nothing of it was applied"):
        go()
    assert [number for number, _, _ in bench.applied] == [0]


# --- a void attempt


def test_a_step_that_does_not_fit_the_grid_is_computed_again() -> None:
    """Nothing is known of the first gradients, and these are beyond what is usual."""

    class Huge(Bench):
        def loss(self, batch: list[int]) -> torch.Tensor:
            return super().loss(batch) * 2.0**90

    torch.manual_seed(4)
    bench = Huge(steps=2).open()
    seen: list[tuple[int, tuple[int, int]]] = []
    for step in bench.run:
        for batch in step:
            seen.append((step.number, (batch[0], batch[1])))
            step.backward(bench.loss(batch))
        assert all(parameter.grad is not None for parameter in bench.model.parameters())
        assert all(bool(parameter.grad.isfinite().all()) for parameter in bench.model.parameters())  # type: ignore[union-attr]
    first = [place for place in seen if place[0] == 0]
    assert first[:B] == first[B:], "all of it, once more"
    assert len(seen) == 3 * B
    assert bench.engine.computed == 3 * B


# --- losses


@both
def test_lost_microbatches_simply_appear(reduction: Reduction, model: nn.Module) -> None:
    """A peer dies while this rank computes its share; the step is whole all the same."""
    expected = train(Bench(model=copy.deepcopy(model), reduction=reduction).open())

    class Peered(Bench):
        def loss(self, batch: list[int]) -> torch.Tensor:
            if batch == [0, 1]:
                self.prepare(2)
                self.open(2)
            return super().loss(batch)

    bench = Peered(model=copy.deepcopy(model), reduction=reduction)
    bench.open(1, (0, 1), peers=1)
    assert same(train(bench), expected)
    (report,) = [message for message in bench.sent if isinstance(message, Report)]
    assert (report.done, report.owed) == (frozenset(), {0, 1})
    assert bench.engine.computed == 2 * B


def test_nothing_is_reduced_while_something_is_owed() -> None:
    """More may come between the last microbatch and the reduction."""
    bench = Bench().open()
    bench.engine.begin(bench._training(0))
    assert bench.engine.settle() is None
    assert bench.ledger.transaction.current(Generation(1, 1))


@both
@pytest.mark.parametrize("fails", [1, 2, 3])
def test_a_collective_that_dies_costs_no_microbatch(fails: int, reduction: Reduction, model: nn.Module) -> None:
    expected = train(Bench(model=copy.deepcopy(model), reduction=reduction).open())
    bench = Bench(model=copy.deepcopy(model), reduction=reduction, communicators=[Dying(fails)])
    bench.on_report = lambda report: bench.open(report.abandons.number + 1) and None
    bench.open()
    assert same(train(bench), expected)
    assert bench.engine.computed == 2 * B, "nothing was computed again"
    (report,) = [message for message in bench.sent if isinstance(message, Report)]
    assert (report.done, report.cause) == (frozenset(range(B)), "closed by peer")


@both
def test_a_step_that_a_peer_has_decided_is_followed_from_what_is_held(reduction: Reduction, model: nn.Module) -> None:
    """The vote dies here, but a peer saw it whole: no second reduction, the same gradients."""
    expected = train(Bench(model=copy.deepcopy(model), reduction=reduction).open())
    bench = Bench(model=copy.deepcopy(model), reduction=reduction, communicators=[Dying(3)])
    bench.on_report = lambda report: bench.open(2, position=Position(1)) and None
    bench.open()
    assert same(train(bench), expected)
    assert [number for number, _, _ in bench.applied] == [0, 1]
    assert bench.engine.computed == 2 * B
    resumed = [message for message in bench.sent if isinstance(message, Resumed)]
    assert [(message.generation.number, message.position.step) for message in resumed] == [(2, 0)]


@pytest.mark.parametrize("fails", [1, 2])
def test_a_step_that_was_not_voted_on_cannot_be_followed(fails: int, model: nn.Module) -> None:
    refused: list[str] = []

    def open_ahead(report: Report) -> None:
        try:
            bench.open(2, position=Position(1))
        except ProtocolError as error:
            refused.append(str(error))
            bench.open(3)

    bench = Bench(model=model, communicators=[Dying(fails)], on_report=open_ahead)
    train(bench.open())
    assert refused == ["step 0 is called decided, but its vote was never entered here"]


@both
def test_several_collectives_that_die_in_a_row(
    reduction: Reduction, model: nn.Module, undisturbed: list[list[torch.Tensor]]
) -> None:
    bench = Bench(model=copy.deepcopy(model), communicators=[Dying(3), Dying(1), Dying(2), Dying(3)])
    bench.on_report = lambda report: bench.open(report.abandons.number + 1) and None
    bench.open()
    assert same(train(bench), undisturbed)
    assert len([message for message in bench.sent if isinstance(message, Report)]) == 4

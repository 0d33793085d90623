"""What a training function can get wrong: each run ends soon, with one clear line, and leaves nothing behind."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import everstep
import pytest
import torch
from ray import cloudpickle
from torch import Tensor, nn
from torch.nn import functional

from .drive import refused
from .pieces import WIDTH, Samples, mlp, mse

cloudpickle.register_pickle_by_value(sys.modules[__name__])

Train = Callable[[Any], None]


def loop(
    ctx: Any,
    spoil: Callable[[Any, Tensor, Any, Any], None] = lambda step, loss, run, ctx: step.backward(loss),
    between: Callable[[Any, Any, Any], None] = lambda step, run, ctx: None,
    model: nn.Module | None = None,
    loss_of: Callable[[nn.Module, Any], Tensor] = mse,
    data: Any = None,
    extra: Any = None,
) -> None:
    """A loop that is right but for what it is given; ``between`` comes before the optimizer."""
    model = mlp() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = everstep.Microbatches(Samples(), size=2) if data is None else data
    run = ctx.begin(model=model, optimizer=optimizer, data=data, extra=extra, steps=3)
    run.model, run.optimizer = model, optimizer
    for step in run:
        for batch in step:
            spoil(step, loss_of(model, batch), run, ctx)
        between(step, run, ctx)
        optimizer.step()


def clears_the_gradient(ctx: Any) -> None:
    loop(ctx, between=lambda step, run, ctx: run.optimizer.zero_grad())


def zeroes_the_gradient(ctx: Any) -> None:
    loop(ctx, between=lambda step, run, ctx: run.optimizer.zero_grad(set_to_none=False))


def steps_in_the_batch_loop(ctx: Any) -> None:
    def spoil(step: Any, loss: Tensor, run: Any, ctx: Any) -> None:
        step.backward(loss)
        run.optimizer.step()

    loop(ctx, spoil)


def sparse_gradients(ctx: Any) -> None:
    model = nn.Embedding(31, WIDTH, sparse=True)
    loop(ctx, model=model, loss_of=lambda model, batch: model(batch["id"]).square().mean())


def scales_the_loss(ctx: Any) -> None:
    scaler = torch.amp.GradScaler("cpu")
    loop(ctx, lambda step, loss, run, ctx: step.backward(scaler.scale(loss)))


class Locked:
    """Something of the user's own that no other process can hold."""

    def state_dict(self) -> dict[str, Any]:
        import threading

        return {"lock": threading.Lock()}

    def load_state_dict(self, held: dict[str, Any]) -> None:
        pass


def keeps_a_lock(ctx: Any) -> None:
    loop(ctx, extra={"lock": Locked()})


def keeps_a_scaler(ctx: Any) -> None:
    loop(ctx, extra={"scaler": torch.amp.GradScaler("cpu")})


def a_weight_that_is_no_number(ctx: Any) -> None:
    loop(ctx, lambda step, loss, run, ctx: step.backward(loss, weight=float("nan")))


def a_negative_weight_of_parts(ctx: Any) -> None:
    def spoil(step: Any, loss: Tensor, run: Any, ctx: Any) -> None:
        with step.microbatch(weight=-1):
            loss.backward()

    loop(ctx, spoil)


def no_gradient_in_parts(ctx: Any) -> None:
    def spoil(step: Any, loss: Tensor, run: Any, ctx: Any) -> None:
        with step.microbatch():
            pass
        loss.backward()

    loop(ctx, spoil)


def a_data_set_that_grows(ctx: Any) -> None:
    samples = Samples()

    def between(step: Any, run: Any, ctx: Any) -> None:
        samples.length += 1

    loop(ctx, between=between, data=everstep.Microbatches(samples, size=2))


def a_collate_that_returns_nothing(ctx: Any) -> None:
    loop(ctx, data=everstep.Microbatches(Samples(), size=2, collate_fn=lambda samples: None))


def validation() -> Any:
    return everstep.Microbatches(Samples(4), size=2)


def evaluates_in_the_batch_loop(ctx: Any) -> None:
    def spoil(step: Any, loss: Tensor, run: Any, ctx: Any) -> None:
        step.backward(loss)
        run.evaluate(validation(), lambda batch: {"loss": 1.0})

    loop(ctx, spoil)


def evaluates_to_a_list(ctx: Any) -> None:
    loop(ctx, between=lambda step, run, ctx: run.evaluate(validation(), lambda batch: [1.0]))


def evaluates_to_a_text(ctx: Any) -> None:
    loop(ctx, between=lambda step, run, ctx: run.evaluate(validation(), lambda batch: {"loss": "low"}))


def records_twice(ctx: Any) -> None:
    def spoil(step: Any, loss: Tensor, run: Any, ctx: Any) -> None:
        step.record("loss", loss)
        step.backward(loss)
        step.record("loss", loss)

    loop(ctx, spoil)


def records_between_steps(ctx: Any) -> None:
    loop(ctx, between=lambda step, run, ctx: step.record("loss", 1.0))


def records_a_vector(ctx: Any) -> None:
    loop(ctx, lambda step, loss, run, ctx: step.record("losses", loss.expand(3)))


def records_a_text(ctx: Any) -> None:
    loop(ctx, lambda step, loss, run, ctx: step.record("loss", "low"))


class Norm(nn.Module):
    """A kernel changes its buffers and does not tell autograd of it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp()
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("variance", torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(functional.batch_norm(x, self.mean, self.variance, training=True))


def normalizes_by_hand(ctx: Any) -> None:
    loop(ctx, model=Norm())


CASES: list[tuple[Train, str]] = [
    (clears_the_gradient, r"the committed gradient of \S+ was erased before optimizer.step\(\): remove zero_grad\(\)"),
    (zeroes_the_gradient, r"the committed gradient of \S+ was erased before optimizer.step\(\): remove zero_grad\(\)"),
    (steps_in_the_batch_loop, r"optimizer.step\(\) was called before the batches of step 0 were consumed"),
    (sparse_gradients, "weight has a sparse gradient: everstep sums dense ones, use sparse=False"),
    (scales_the_loss, r"GradScaler.scale was called: .*use bf16"),
    (keeps_a_lock, r"the state_dict of extra lock cannot be sent to another rank: cannot pickle '_thread.lock' object"),
    (keeps_a_scaler, r"extra\['scaler'\] is a GradScaler: .*use bf16"),
    (a_weight_that_is_no_number, "weight=nan must be a finite number that is not negative"),
    (a_negative_weight_of_parts, "weight=-1 must be a finite number that is not negative"),
    (no_gradient_in_parts, r"has a gradient that step.backward\(loss\) did not make"),
    (a_data_set_that_grows, "the data set had 31 samples and now has 32: its length must not change during a run"),
    (a_collate_that_returns_nothing, "collate_fn returned nothing: it must return the batch"),
    (evaluates_in_the_batch_loop, "run.evaluate was called before the step's batches were consumed"),
    (evaluates_to_a_list, "eval_fn returned list: it must return a dict of numbers"),
    (evaluates_to_a_text, "loss='low' is no number"),
    (records_twice, r"loss was recorded twice for microbatch \d of step 0"),
    (records_between_steps, r"step.record\('loss'\) was called outside of a microbatch"),
    (records_a_vector, r"losses has shape \(3,\): record a single number"),
    (records_a_text, "loss='low' is no number"),
    (normalizes_by_hand, "the forward changed the buffer mean: it would depend on who computes what"),
]


@pytest.mark.parametrize(("train", "line"), CASES, ids=[train.__name__ for train, _ in CASES])
def test_it_ends_with_one_clear_line(train: Train, line: str, tmp_path: Path) -> None:
    said = refused(train, tmp_path)
    assert re.search(line, said), said

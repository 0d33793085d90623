"""What a user can get wrong: each ends soon, with one clear line, and leaves nothing behind."""

import re
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from everstep.conf.chaos import Fault, FaultPoint
from everstep.conf.elastic import ElasticConfig
from everstep.conf.scaling import Scaling
from everstep.orchestrator.drivers import LocalDriver
from everstep.orchestrator.plan import RunPlan
from everstep.orchestrator.view import Phase, RunState
from ray import cloudpickle

from .harness import QUICK

cloudpickle.register_pickle_by_value(sys.modules[__name__])

Train = Callable[[Any], None]


def begin(ctx: Any, dataset: Any = None, model: Any = None, steps: int = 4) -> Any:
    import everstep
    import torch

    model = model or torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = everstep.Microbatches(torch.arange(24.0).view(8, 3) if dataset is None else dataset, size=1)
    return model, optimizer, ctx.begin(model=model, optimizer=optimizer, data=data, steps=steps)


def loop(ctx: Any, spoil: Callable[[Any, Any, Any], None], **options: Any) -> None:
    model, optimizer, run = begin(ctx, **options)
    for step in run:
        for batch in step:
            spoil(step, model(batch).square().mean(), ctx)
        optimizer.step()


def iterable_data(ctx: Any) -> None:
    begin(ctx, dataset=iter([1, 2]))


def empty_data(ctx: Any) -> None:
    begin(ctx, dataset=[])


def raises_everywhere(ctx: Any) -> None:
    raise ZeroDivisionError("a mistake of mine")


def raises_in_the_loop(ctx: Any) -> None:
    def spoil(step: Any, loss: Any, ctx: Any) -> None:
        raise KeyError("another mistake")

    loop(ctx, spoil)


def never_begins(ctx: Any) -> None:
    pass


def leaves_on_one_rank(ctx: Any) -> None:
    model, optimizer, run = begin(ctx)
    for step in run:
        if ctx.replica == 1 and step.number == 2:
            break
        for batch in step:
            step.backward(model(batch).square().mean())
        optimizer.step()


def nan_loss(ctx: Any) -> None:
    def spoil(step: Any, loss: Any, ctx: Any) -> None:
        step.backward(loss * float("nan") if step.number == 2 and ctx.replica == 1 else loss)

    loop(ctx, spoil)


def nan_loss_of_a_dying_rank(ctx: Any) -> None:
    """The rank whose loss is not finite dies when all have seen it, before it can say so."""

    def spoil(step: Any, loss: Any, ctx: Any) -> None:
        spoiled = step.number == 2 and ctx.replica == 1
        step.backward(loss * float("nan") if spoiled else loss)

    loop(ctx, spoil)


def no_backward(ctx: Any) -> None:
    loop(ctx, lambda step, loss, ctx: None)


def bare_backward(ctx: Any) -> None:
    loop(ctx, lambda step, loss, ctx: loss.backward())


def two_backwards(ctx: Any) -> None:
    def spoil(step: Any, loss: Any, ctx: Any) -> None:
        step.backward(loss)
        step.backward(loss)

    loop(ctx, spoil)


def negative_weight(ctx: Any) -> None:
    loop(ctx, lambda step, loss, ctx: step.backward(loss, weight=-1))


def only_zero_weights(ctx: Any) -> None:
    loop(ctx, lambda step, loss, ctx: step.backward(loss, weight=0))


def skips_the_batches(ctx: Any) -> None:
    _, _, run = begin(ctx)
    for _ in run:
        pass


def other_models(ctx: Any) -> None:
    import torch

    torch.manual_seed(ctx.replica)
    loop(ctx, lambda step, loss, ctx: step.backward(loss))


def batch_norm(ctx: Any) -> None:
    import torch

    loop(ctx, lambda step, loss, ctx: step.backward(loss), model=torch.nn.BatchNorm1d(3))


def no_steps(ctx: Any) -> None:
    begin(ctx, steps=0)


CASES: list[tuple[Train, str]] = [
    (iterable_data, "is not a map-style data set"),
    (empty_data, "the data set is empty"),
    (raises_everywhere, "ZeroDivisionError: a mistake of mine"),
    (raises_in_the_loop, "KeyError: 'another mistake'"),
    (never_begins, "returned without calling ctx.begin"),
    (leaves_on_one_rank, "left the step loop at step 2 of 4"),
    (nan_loss, r"rank 1.0: microbatch \d of step 2 is not finite"),
    (nan_loss_of_a_dying_rank, "is not finite, and the rank that computed it is gone"),
    (no_backward, "ended without step.backward"),
    (bare_backward, "use step.backward instead of loss.backward"),
    (two_backwards, "called a second time for microbatch"),
    (negative_weight, "must be a finite number that is not negative"),
    (only_zero_weights, "all microbatches of step 0 have weight 0"),
    (skips_the_batches, "was left before its batches were consumed"),
    (other_models, "members differ in initial state of weight"),
    (batch_norm, "changes its buffers in every forward"),
    (no_steps, "must be a whole number of at least 1"),
]


CHAOS = {nan_loss_of_a_dying_rank: (Fault(2, 1, point=FaultPoint.AFTER_VOTE),)}


@pytest.mark.parametrize(("train", "text"), CASES, ids=[train.__name__ for train, _ in CASES])
def test_it_ends_with_one_clear_line(train: Train, text: str, tmp_path: Path) -> None:
    plan = RunPlan(
        run=train.__name__,
        elastic=ElasticConfig(4, snapshot_every=0, timeouts=QUICK, chaos=CHAOS.get(train, ())),
        scaling=Scaling(1, 2),
        train=cloudpickle.dumps(train),
        folder=str(tmp_path),
    )
    looks: list[RunState] = []
    ports: set[int] = set()

    def look(state: RunState) -> None:
        looks.append(state)
        ports.update(link.laddr.port for link in psutil.Process().net_connections() if link.status == "LISTEN")

    before = {link.laddr.port for link in psutil.Process().net_connections() if link.status == "LISTEN"}
    state = LocalDriver().drive(plan, look)
    assert state.phase is Phase.FAILED
    assert state.error is not None
    assert "\n" not in state.error
    assert re.search(text, state.error), state.error
    for pid in {member.pid for seen in looks for member in seen.members if member.pid}:
        assert not psutil.pid_exists(pid), "a rank outlived its run"
    for port in ports - before:
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", port), timeout=1.0)


def test_the_users_traceback_is_kept(tmp_path: Path) -> None:
    plan = RunPlan(
        run="traceback",
        elastic=ElasticConfig(4, snapshot_every=0, timeouts=QUICK),
        scaling=Scaling(2, 2),
        train=cloudpickle.dumps(raises_everywhere),
    )
    state = LocalDriver().drive(plan, lambda _: None)
    assert state.traceback is not None
    assert "in raises_everywhere" in state.traceback

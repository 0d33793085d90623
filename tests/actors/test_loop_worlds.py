"""A training thread whose share changes under it: shadows, ranks that begin anew, states that lie elsewhere."""

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from everstep.actors.messages import Open, Restore, StoreAddress
from everstep.actors.rank.ledger import Rewound
from everstep.policies.workload import Assignment, Balanced
from everstep.policies.world import Generation, Member, Position, Seat, Work, WorkKind, World
from torch import nn

from .exchange import Exchange, ThreadCommunicator, together
from .rank_bench import B, Bench, Solo, same, train

WORK = Work(WorkKind.TRAINING, B)
STORE = StoreAddress("host", 1, "root")


class Quiet(ThreadCommunicator):
    def interrupt(self) -> None:
        pass


def opening(number: int, mine: tuple[int, ...], names: tuple[str, ...] = ("me",), **told: Any) -> Open:
    world = World(Generation(1, number), tuple(Member(name, Seat(place)) for place, name in enumerate(names)))
    held: dict[str, Any] = {"position": Position(0), "work": WORK, **told}
    return Open(world, held.pop("position"), {"me": mine}, STORE, held.pop("work"), **held)


def watched(bench: Bench, at: Mapping[int, Callable[[], None]], seen: list[int]) -> list[list[torch.Tensor]]:
    """Train; note the indices, and at some of them do something in the middle of the microbatch, once."""
    plain, left = bench.loss, dict(at)

    def loss(batch: list[int]) -> torch.Tensor:
        index = batch[0] // 2 % B
        seen.append(index)
        left.pop(index, lambda: None)()
        return plain(batch)

    bench.loss = loss  # type: ignore[method-assign]
    return train(bench)


def test_a_shadow_that_is_let_go_in_a_microbatch_begins_with_nothing(
    model: nn.Module, undisturbed: list[list[torch.Tensor]]
) -> None:
    """It has summed 0 and is in 1, both another one's, when it is given 2 and 3."""
    exchange = Exchange(2)

    def work(communicator: ThreadCommunicator) -> tuple[list[int], list[list[torch.Tensor]]]:
        here = Quiet(exchange, communicator.rank)
        bench = Bench(steps=1, model=copy.deepcopy(model))
        seen: list[int] = []
        names = ("other", "me") if communicator.rank else ("me", "other")
        if communicator.rank == 0:
            bench.communicators = [here]
            bench.ledger.open(opening(2, (0, 1), names))
            return seen, watched(bench, {}, seen)
        bench.communicators = [Solo(), here]
        bench.ledger.open(opening(1, (0, 1), names, shadows={"me": "other"}))

        def let_go() -> None:
            bench.prepare(2)
            bench.ledger.open(opening(2, (2, 3), names))

        return seen, watched(bench, {1: let_go}, seen)

    (first, grads), (second, others) = together(2, work)
    assert (first, second) == ([0, 1], [0, 1, 2, 3])
    assert same(grads, undisturbed[:1])
    assert same(others, undisturbed[:1])


def test_a_rank_of_a_completed_replica_does_the_step_again(
    model: nn.Module, undisturbed: list[list[torch.Tensor]]
) -> None:
    bench = Bench(model=model)
    bench.ledger.open(opening(1, (0, 1, 2, 3)))

    def complete() -> None:
        bench.prepare(2)
        bench.ledger.open(opening(2, (0, 1, 2, 3), sources={"me": "me"}))

    seen: list[int] = []
    assert same(watched(bench, {2: complete}, seen), undisturbed)
    assert seen == [0, 1, 2, 0, 1, 2, 3, 0, 1, 2, 3]
    assert bench.engine.computed == len(seen)


def test_what_is_done_anew_is_not_sent_early_with_what_was_void(
    model: nn.Module, undisturbed: list[list[torch.Tensor]]
) -> None:
    """In its last microbatch it is told to do the step again, of which that one is the last as well."""
    bench = Bench(model=model)
    bench.ledger.open(opening(1, (0, 1, 2, 3)))

    def complete() -> None:
        bench.prepare(2)
        bench.ledger.open(opening(2, (0, 1, 2, 3), sources={"me": "me"}))
        for index in (0, 1, 2):
            bench.ledger.fold(Position(0), index)
        assert bench.engine.last_group(3) == (None, False)
        bench.prepare(3)
        bench.ledger.open(opening(3, (0, 1, 2, 3), sources={"me": "me"}))

    assert same(watched(bench, {3: complete}, []), undisturbed)


class Mirrored(Balanced):
    """The first replica computes everything, and the second one repeats it."""

    def plan(self, replicas: Sequence[int], microbatches: int) -> Assignment:
        return Assignment({0: tuple(range(microbatches)), 1: ()}, "mirrored", {1: 0})


@pytest.mark.parametrize("slow", [False, True])
def test_a_shadow_begins_nothing_once_the_others_are_through(slow: bool, model: nn.Module) -> None:
    steps, exchange = 3, Exchange(2)

    def work(communicator: ThreadCommunicator) -> tuple[list[list[torch.Tensor]], int]:
        shadow = communicator.rank == 1
        bench = Bench(
            steps, copy.deepcopy(model), workload=Mirrored(), communicators=[Quiet(exchange, communicator.rank)]
        )
        bench.ledger.open(opening(1, (), ("other", "me") if shadow else ("me", "other"), work=None))
        plain, delay = bench.loss, (0.2 if slow else 0.05) if slow is shadow else 0.005 if slow else 0.02

        def loss(batch: list[int]) -> torch.Tensor:
            time.sleep(delay)
            return plain(batch)

        bench.loss = loss  # type: ignore[method-assign]
        return train(bench), bench.engine.computed

    (grads, computed), (others, repeated) = together(2, work)
    undisturbed = Bench(steps, copy.deepcopy(model)).open()
    assert same(grads, train(undisturbed))
    assert same(others, grads)
    assert computed == steps * B
    # In the first step nobody knows how long the others take.
    assert repeated == (B + steps - 1 if slow else steps * B)


def test_busy_is_what_microbatches_took_and_nothing_else(model: nn.Module) -> None:
    bench = Bench(steps=2, model=model).open()
    for step in bench.run:
        for batch in step:
            time.sleep(0.01)
            step.backward(bench.loss(batch))
        time.sleep(0.2)
    assert bench.engine.computed == 2 * B
    assert 2 * B * 0.01 <= bench.engine.busy < 2 * B * 0.01 + 0.2


# --- states that lie elsewhere


@pytest.mark.parametrize("told", [{"sources": {"me": "peer"}}, {"restore": Restore("vault", 0)}])
def test_a_rank_does_not_go_on_without_the_state_that_it_is_to_take(told: dict[str, Any]) -> None:
    fresh = Bench()
    fresh.ledger.open(opening(1, (0, 1, 2, 3), **told))
    with pytest.raises(Rewound):
        train(fresh)
    bench = Bench()
    bench.ledger.open(opening(1, (0, 1, 2, 3)))

    def call() -> None:
        bench.prepare(2)
        bench.ledger.open(opening(2, (0, 1, 2, 3), **told))

    with pytest.raises(Rewound):
        watched(bench, {2: call}, [])

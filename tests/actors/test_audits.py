"""A microbatch that others compute as well: all bring the same bits, and training does not notice."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from everstep.actors.evidence import Check, Evidence
from everstep.actors.messages import Prepare
from everstep.actors.rank.audits import Audits
from everstep.actors.rank.loop import Step
from everstep.conf.elastic import Buffers as BufferMode
from everstep.conf.elastic import Reduction
from everstep.policies.world import Generation, Position
from torch import nn
from torch.utils.checkpoint import checkpoint

from .exchange import Exchange, ThreadCommunicator, together
from .ledger_bench import Bench as Ledgers
from .rank_bench import B, Bench, same, train
from .test_loop_worlds import WORK, Mirrored, Quiet, opening

Told = dict[int, dict[int, tuple[str, int]]]
both = pytest.mark.parametrize("reduction", list(Reduction))


def names(ranks: int, mine: int) -> tuple[str, ...]:
    return tuple("me" if place == mine else f"peer-{place}" for place in range(ranks))


def world_of(
    ranks: int,
    model: nn.Module,
    act: Callable[[Bench, int], Any] = lambda bench, rank: train(bench),
    *,
    every: int = 1,
    steps: int = 5,
    **settings: Any,
) -> list[tuple[Any, Bench]]:
    """All ranks of a world, on threads: what ``act`` returns, and the bench of each."""
    exchange = Exchange(ranks)

    def work(communicator: ThreadCommunicator) -> tuple[Any, Bench]:
        rank = communicator.rank
        here = Quiet(exchange, rank)
        bench = Bench(steps, copy.deepcopy(model), audit_every=every, communicators=[here], **settings)
        bench.ledger.open(opening(1, (), names(ranks, rank), work=None))
        return act(bench, rank), bench

    return together(ranks, work)


def evidence(bench: Bench) -> list[Evidence]:
    return [message for message in bench.sent if isinstance(message, Evidence)]


def told_by(world: Sequence[tuple[Any, Bench]]) -> Told:
    """By step and rank, the microbatch and the signature."""
    found: Told = {}
    for rank, (_, bench) in enumerate(world):
        for message in evidence(bench):
            assert message.check is Check.AUDIT
            assert rank in message.among
            ((name, signature),) = message.signatures.items()
            assert rank not in found.setdefault(message.step, {})
            found[message.step][rank] = name, signature
    return found


@both
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_all_who_compute_it_bring_the_same_bits(ranks: int, reduction: Reduction, model: nn.Module) -> None:
    plain = world_of(ranks, model, every=0, reduction=reduction)
    audited = world_of(ranks, model, reduction=reduction)
    assert not told_by(plain)
    told = told_by(audited)
    # Step 0 has the probe.
    assert sorted(told) == [1, 2, 3, 4]
    for held in told.values():
        assert len(held) == min(ranks, 3)
        assert len(set(held.values())) == 1
    assert len({next(iter(held.values())) for held in told.values()}) == len(told)
    for (gradients, bench), (expected, other) in zip(audited, plain, strict=True):
        assert same(gradients, expected)
        assert bench.applied == other.applied
        assert bench.engine.computed == other.engine.computed


@both
@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_whoever_computes_otherwise_is_alone(wrong: int, reduction: Reduction, model: nn.Module) -> None:
    """From step 3 on, in whatever it computes: its own microbatch, or one of another."""

    def act(bench: Bench, rank: int) -> None:
        plain = bench.loss

        def loss(batch: list[int]) -> torch.Tensor:
            assert bench.run.current is not None
            off = rank == wrong and bench.run.current.number >= 3
            return plain(batch) * (1 + 2**-20 if off else 1)

        bench.loss = loss  # type: ignore[method-assign]
        train(bench)

    for step, held in told_by(world_of(3, model, act, steps=8, reduction=reduction)).items():
        assert sorted(held) == [0, 1, 2]
        others = {value for rank, value in held.items() if rank != wrong}
        assert len(others) == 1
        assert (held[wrong] in others) == (step < 3)


def by_hand(bench: Bench, step: Step, batch: list[int]) -> None:
    """The backward in two parts, as a loop of the user's own might do it."""
    with step.microbatch(weight=2.0):
        for sample in batch:
            (bench.loss([sample]) / 2).backward()


def skipped(bench: Bench, step: Step, batch: list[int]) -> None:
    if batch[0] % 4 == 0:
        step.skip("an even one")
    else:
        step.backward(bench.loss(batch), weight=0 if batch[0] % 8 == 6 else 1.5)


def recorded(bench: Bench, step: Step, batch: list[int]) -> None:
    loss = bench.loss(batch)
    step.backward(loss, weight=3.0)
    step.record("samples", float(sum(batch)))


def in_pieces(bench: Bench, step: Step, batch: list[int]) -> None:
    """Autograd comes to each parameter several times in one backward, as re-entrant checkpoints have it."""
    data = torch.tensor([[sample / 7, 1.0, -sample / 3] for sample in batch], requires_grad=True)
    first, second = (checkpoint(bench.model, data * factor, use_reentrant=True) for factor in (1, 2))
    step.backward((first.square() + second.square()).mean())


@both
@pytest.mark.parametrize("microbatch", [by_hand, skipped, recorded, in_pieces])
def test_however_a_microbatch_ends(
    microbatch: Callable[[Bench, Step, list[int]], None], reduction: Reduction, model: nn.Module
) -> None:
    def act(bench: Bench, rank: int) -> list[Any]:
        seen = []
        for step in bench.run:
            for batch in step:
                microbatch(bench, step, batch)
            gradients = [held.grad.clone() for held in bench.model.parameters() if held.grad is not None]
            seen.append((gradients, step.numbers, step.loss, step.weight))
        return seen

    plain = world_of(3, model, act, every=0, reduction=reduction)
    audited = world_of(3, model, act, reduction=reduction)
    told = told_by(audited)
    assert sorted(told) == [1, 2, 3, 4]
    assert all(len(set(held.values())) == 1 for held in told.values())
    for (seen, _), (expected, _) in zip(audited, plain, strict=True):
        for (gradients, *facts), (others, *same_facts) in zip(seen, expected, strict=True):
            assert repr(facts) == repr(same_facts)
            assert same([gradients], [others])


def test_buffers_that_are_folded(model: nn.Module) -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = copy.deepcopy(model)
            self.register_buffer("seen", torch.zeros(3))

        def forward(self, data: torch.Tensor) -> torch.Tensor:
            self.seen += data.sum(0)
            return self.inner(data)  # type: ignore[no-any-return]

    plain = world_of(3, Counting(), every=0, buffer_mode=BufferMode.FOLD)
    audited = world_of(3, Counting(), buffer_mode=BufferMode.FOLD)
    told = told_by(audited)
    assert all(len(held) == 3 and len(set(held.values())) == 1 for held in told.values())
    for (gradients, bench), (expected, other) in zip(audited, plain, strict=True):
        assert same(gradients, expected)
        assert torch.equal(bench.model.get_buffer("seen"), other.model.get_buffer("seen"))


def test_a_shadow_audits_and_owns_nothing(model: nn.Module) -> None:
    """Rank 1 repeats rank 0, which has everything: so rank 0 is always the owner."""
    world = world_of(2, model, workload=Mirrored())
    told = told_by(world)
    assert sorted(told) == [1, 2, 3, 4]
    assert all(sorted(held) == [0, 1] and len(set(held.values())) == 1 for held in told.values())


def test_a_group_that_is_lost_in_an_audit(model: nn.Module) -> None:
    """Rank 0 computes the microbatch of another in step 1 when that one dies, and goes on alone."""
    alone = train(Bench(steps=3, model=copy.deepcopy(model)).open())
    exchange = Exchange(2)

    def work(communicator: ThreadCommunicator) -> tuple[list[list[torch.Tensor]], list[Evidence]]:
        rank = communicator.rank
        steps = 1 if rank else 3
        here = Quiet(exchange, rank)
        bench = Bench(steps, copy.deepcopy(model), audit_every=1, communicators=[here])
        bench.ledger.open(opening(1, (), names(2, rank), work=None))
        plain, asides = bench.loss, []

        def loss(batch: list[int]) -> torch.Tensor:
            step, held = bench.run.current, bench.ledger.transaction
            assert step is not None
            if step.number == 1 and not asides:
                asides.append(batch[0] // 2 % B)
                assert asides[0] not in held.owed
                bench.prepare(2)
                bench.ledger.open(opening(2, tuple(range(B)), position=held.position))
            return plain(batch)

        bench.loss = loss  # type: ignore[method-assign]
        return train(bench), evidence(bench)

    (survivor, brought), _ = together(2, work)
    assert same(survivor, alone)
    assert brought == []


# --- who has which part


def of_ledger(told: bool = False, seat: int = 0, ranks: int = 3) -> tuple[Audits, Ledgers]:
    """At step 2, which it has come to as the first of its world, or when others had begun it before."""
    bench = Ledgers(seat=seat)
    audits = Audits(bench.ledger, 2, bench.send)
    world, place = names(ranks, seat), {"position": Position(2), "sources": {"me": "peer"}}
    bench.ledger.open(opening(1, (0, 1, 3), world, work=WORK if told else None, **place))
    bench.ledger.obtain(bench.ledger.transaction.beginning)
    bench.ledger.take_up(Position(2), WORK, 0)
    return audits, bench


def test_everybody_knows_who_has_which_part() -> None:
    duties = [of_ledger(seat=seat)[0].duty(Position(2), WORK) for seat in range(3)]
    (audit,) = {duty.audit for duty in duties if duty is not None}
    assert [duty.owns for duty in duties if duty is not None] == [seat == audit.owner for seat in range(3)]
    assert {audit.owner, audit.auditor, audit.judge} == {0, 1, 2}
    fourth = [of_ledger(seat=seat, ranks=4)[0].duty(Position(2), WORK) for seat in range(4)]
    assert fourth.count(None) == 1


@pytest.mark.parametrize("position", [Position(0), Position(3), Position(2, attempt=1)])
def test_when_nothing_is_audited(position: Position) -> None:
    assert of_ledger()[0].duty(position, WORK) is None


def test_a_share_that_was_told_is_not_audited() -> None:
    """Others have lost a rank at this step before this one came there: nobody has planned what it computes."""
    assert of_ledger(told=True)[0].duty(Position(2), WORK) is None


def test_nothing_is_brought_to_a_group_that_is_gone() -> None:
    audits, bench = of_ledger()
    duty = audits.duty(Position(2), WORK)
    assert duty is not None
    audits.bring(duty, -7)
    assert bench.log[-1][1] == Evidence(
        "me", Check.AUDIT, 2, Generation(1, 1), (0, 1, 2), {f"gradient of microbatch {duty.audit.index}": -7}
    )
    bench.ledger.prepare(Prepare(Generation(1, 2)))
    said = list(bench.log)
    audits.bring(duty, -7)
    assert bench.log == said

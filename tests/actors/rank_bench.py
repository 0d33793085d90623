"""One rank's training thread with everything real but the network: ledger, groups, engine, loop and data."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from everstep.actors.faults import Chaos
from everstep.actors.messages import FromRank, Open, Prepare, Report, StoreAddress
from everstep.actors.rank.audits import Audits
from everstep.actors.rank.buffers import Buffers
from everstep.actors.rank.data import Loader, Microbatches
from everstep.actors.rank.engine import Engine
from everstep.actors.rank.gradients import GradientSum
from everstep.actors.rank.groups import Groups
from everstep.actors.rank.ledger import Ledger
from everstep.actors.rank.loop import Machinery
from everstep.actors.rank.run import Run
from everstep.actors.rank.trace import Trace
from everstep.actors.rank.training import Training
from everstep.conf.elastic import Buffers as BufferMode
from everstep.conf.elastic import OnTrouble, Reduction, Timeouts
from everstep.conf.errors import CommunicatorError, LoopError
from everstep.policies.workload import Balanced, WorkloadPolicy
from everstep.policies.world import Generation, Member, Position, Seat, Work, WorkKind, World
from torch import nn

from .exchange import Exchange, ThreadCommunicator, ThreadPending

B = 4
SEED = 11
CPU = torch.device("cpu")
TIMEOUTS = Timeouts(recovery=20.0, collective=10.0, build=5.0)


class Dying(ThreadCommunicator):
    """Its ``fails``-th all-reduce fails when it is waited for; the vote is the third."""

    def __init__(self, fails: int) -> None:
        super().__init__(Exchange(1), 0)
        self._left = fails

    def all_reduce(self, tensor: torch.Tensor, op: Any) -> ThreadPending:
        pending = super().all_reduce(tensor, op)
        self._left -= 1
        return ThreadPending(self._die) if self._left == 0 else pending

    def _die(self) -> None:
        raise CommunicatorError("closed by peer")

    def interrupt(self) -> None:
        pass


class Solo(ThreadCommunicator):
    def __init__(self) -> None:
        super().__init__(Exchange(1), 0)

    def interrupt(self) -> None:
        pass


@dataclass
class Bench:
    """A rank that is alone in its world, or whose peers are played by the test.

    Attributes:
        communicators: of the generations to come, in order; later ones are healthy.
        on_report: called on a thread of its own with every report; usually it opens the next generation.
    """

    steps: int = 2
    model: nn.Module = field(default_factory=lambda: nn.Linear(3, 1))
    reduction: Reduction = Reduction.EXACT
    buffer_mode: BufferMode = BufferMode.REFUSE
    on_nonfinite: OnTrouble = OnTrouble.STOP
    probes: bool = False
    audit_every: int = 0
    workload: WorkloadPolicy = field(default_factory=Balanced)
    communicators: list[ThreadCommunicator] = field(default_factory=list)
    on_report: Callable[[Report], None] = lambda report: None
    chaos: Chaos = field(default_factory=lambda: Chaos((), Seat(0), lambda fault, evidence: None))
    sent: list[FromRank] = field(default_factory=list)
    applied: list[tuple[int, float, float]] = field(default_factory=list)
    threads: list[threading.Thread] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.groups = Groups(
            lambda message: self.communicators.pop(0) if self.communicators else Solo(),
            lambda generation, seconds: None,
            lambda generation, error: self.ledger.abandon(generation, error),
        )
        self.ledger = Ledger("me", self._send, self.groups, self.workload)
        parameters = dict(self.model.named_parameters())
        self.gradients = GradientSum(parameters, self.reduction, B, 10**6, 4)
        self.engine = Engine(self.ledger, self.groups, CPU, TIMEOUTS, self.chaos, Trace(None, "me"), self._send)
        # Sample n is n: a batch of two says which samples it holds.
        self.loader = Loader(Microbatches(list(range(100)), 2, collate_fn=list, shuffle=False), B, SEED)
        self.buffers = Buffers({"": self.model}, self.buffer_mode)
        audits = Audits(self.ledger, self.audit_every, self._send)
        machinery = Machinery(
            self.engine, self.loader, self.gradients, self.buffers, self.chaos, SEED, self._training, audits
        )
        self.run = Run(
            self.ledger,
            machinery,
            {"": self.model},
            CPU,
            self.steps,
            self.probes,
            on_applied=lambda step: self.applied.append((step.number, step.loss, step.weight)),
        )

    def _training(self, step: int) -> Training:
        return Training(
            step,
            B,
            self.gradients,
            self._trained,
            self.on_nonfinite,
            self.chaos,
            lambda: self.ledger.await_end(TIMEOUTS.recovery),
        )

    def _trained(self) -> dict[str, torch.Tensor]:
        named = {name: held for name, held in self.model.named_parameters() if held.requires_grad}
        return {**self.buffers.shadows, **named}

    def open(
        self,
        number: int = 1,
        mine: tuple[int, ...] | None = None,
        position: Position | None = None,
        peers: int = 0,
        poison: frozenset[int] = frozenset(),
    ) -> "Bench":
        members = (Member("me", Seat(0)), *(Member(f"peer-{place}", Seat(place)) for place in range(1, peers + 1)))
        held = tuple(range(B)) if mine is None else mine
        indices = {member.incarnation: held if member.incarnation == "me" else () for member in members}
        world = World(Generation(1, number), members)
        work = Work(WorkKind.TRAINING, B)
        store = StoreAddress("host", 1, "root")
        self.ledger.open(Open(world, position or Position(0), indices, store, work, {0: poison}))
        return self

    def open_again(self, report: Report) -> "Bench":
        """The next generation, alone, with the work that the report tells of."""
        world = World(Generation(1, report.abandons.number + 1), (Member("me", Seat(0)),))
        indices = {"me": tuple(sorted(report.done | report.owed))}
        self.ledger.open(Open(world, report.position, indices, StoreAddress("host", 1, "root"), report.work))
        return self

    def prepare(self, number: int) -> None:
        self.ledger.prepare(Prepare(Generation(1, number)))

    def loss(self, batch: list[int]) -> torch.Tensor:
        """Differs from sample to sample."""
        data = torch.tensor([[sample / 7, 1.0, -sample / 3] for sample in batch])
        return self.model(data).square().mean()  # type: ignore[no-any-return]

    def _send(self, message: FromRank) -> None:
        self.sent.append(message)
        if isinstance(message, Report):
            thread = threading.Thread(target=self.on_report, args=(message,), daemon=True)
            self.threads.append(thread)
            thread.start()


def train(bench: Bench, weights: tuple[float, ...] = (1.0, 2.0, 0.5, 3.0)) -> list[list[torch.Tensor]]:
    """Every step's gradients; the weights of the model move, so that each step depends on the one before."""
    gradients = []
    for step in bench.run:
        for batch in step:
            assert bench.run.current is not None
            assert bench.run.current.microbatch_under_way is not None
            index, samples = bench.run.current.microbatch_under_way
            assert list(samples) == batch
            step.backward(bench.loss(batch), weight=weights[index])
        held = [parameter.grad.clone() for parameter in bench.model.parameters() if parameter.grad is not None]
        gradients.append(held)
        with torch.no_grad():
            for parameter, gradient in zip(bench.model.parameters(), held, strict=True):
                parameter -= 0.01 * gradient
    return gradients


def misuse(act: Any, **settings: Any) -> str:
    """The one line in which it ends if ``act(bench, step, batch)`` is done in each microbatch."""
    bench = Bench(**settings).open()

    def go() -> None:
        for step in bench.run:
            for batch in step:
                act(bench, step, batch)

    with pytest.raises(LoopError) as caught:
        go()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def weights_of(bench: Bench) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in bench.model.parameters()]


def same(first: list[list[torch.Tensor]], second: list[list[torch.Tensor]]) -> bool:
    """Whether two runs had the same gradients in all their steps, to the bit."""
    return all(
        torch.equal(a, b) for one, other in zip(first, second, strict=True) for a, b in zip(one, other, strict=True)
    )

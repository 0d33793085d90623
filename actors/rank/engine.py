"""One step on the training thread: compute what is owed, reduce, take the census, vote; and again if a peer dies."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

import torch
import torch.distributed as dist
from torch import Tensor

from ...conf.chaos import FaultPoint
from ...conf.elastic import Timeouts
from ...conf.errors import CommunicatorError, LoopError, NonFiniteError
from ...policies.world import Generation, Position
from ..faults import Chaos
from ..messages import FromRank, Resumed
from . import census as census_module
from .census import Census, Contribution
from .communicator import Communicator
from .gradients import GradientSum
from .groups import Groups
from .ledger import Ledger, after
from .trace import Trace
from .transaction import ProtocolError, Verdict


@dataclass
class _Timing:
    """When things happened in the step under way, on this rank's monotonic clock, in seconds."""

    spans: list[tuple[float, float]] = field(default_factory=list)
    failed: float = 0.0
    reduced: float = 0.0


class Engine:
    """Carries one rank through its steps.

    Args:
        ledger: the transaction.
        groups: where the communicators come from.
        gradients: the sum.
        microbatches: B.
        timeouts: all deadlines.
        chaos: planned faults.
        trace: for those who check from outside.
        send: to the controller.
    """

    def __init__(
        self,
        ledger: Ledger,
        groups: Groups,
        gradients: GradientSum,
        microbatches: int,
        timeouts: Timeouts,
        chaos: Chaos,
        trace: Trace,
        send: Callable[[FromRank], None],
    ) -> None:
        self._ledger = ledger
        self._groups = groups
        self._gradients = gradients
        self._microbatches = microbatches
        self._timeouts = timeouts
        self._chaos = chaos
        self._trace = trace
        self._send = send
        self._census: Census | None = None
        self._contributions: dict[int, Contribution] = {}
        self._planned: frozenset[int] = frozenset()
        self._resumed_in: Generation | None = None
        self.position = Position(0)
        self.computed = 0
        self.timing = _Timing()

    def begin(self, position: Position) -> None:
        """Empty everything for an attempt at a step."""
        self.position = position
        self._contributions = {}
        self._census = None
        self.timing = _Timing()
        self._planned = frozenset(self._ledger.transaction.indices)
        self._gradients.reset()
        self._chaos.step, self._chaos.ordinal = position.step, -1

    def next_index(self) -> int | None:
        """The next microbatch to compute, None if nothing is owed. More may be owed after a loss."""
        transaction = self._ledger.transaction
        if transaction.position != self.position or not transaction.owed:
            return None
        self._chaos.ordinal += 1
        return transaction.owed[0]

    def upcoming(self, index: int) -> tuple[tuple[int, int], ...]:
        """(step, index) of what this rank will compute after ``index``, as far as it knows."""
        transaction = self._ledger.transaction
        step = self.position.step
        return tuple((step, other) for other in transaction.owed if other != index)

    @property
    def extending(self) -> bool:
        """Whether the microbatch under way was first given to a rank that is lost."""
        owed = self._ledger.transaction.owed
        return bool(owed) and owed[0] not in self._planned

    def backward(self, index: int) -> AbstractContextManager[None]:
        """While it lasts gradients are folded as they are made; buckets are exchanged if this is the last backward."""
        transaction = self._ledger.transaction
        last = None
        if transaction.position == self.position and transaction.owed == (index,) and not transaction.abandoned:
            assert transaction.generation is not None
            last = self._groups.ready(transaction.generation)
        return self._gradients.backward(last, self._chaos)

    def fold(self, index: int, weight: float, loss: Tensor, started: float) -> None:
        """The gradient of this microbatch lies in ``.grad``: take it."""
        peak = self._gradients.fold()
        self._contributions[index] = Contribution(weight, loss.detach(), peak)
        self._ledger.fold(self.position, index)
        self.computed += 1
        span = (started, time.monotonic())
        self.timing.spans.append(span)
        if self._trace:
            self._trace.write("computed", step=self.position.step, index=index, span=span)

    def settle(self) -> tuple[Verdict, Census] | None:
        """Reduce and vote once.

        Returns:
            The verdict with its census, or None if the world changed: then compute what is owed and settle again.

        Raises:
            NonFiniteError: this rank's contribution is not finite.
            ProtocolError: a microbatch was not summed exactly once.
        """
        transaction = self._ledger.await_open(self._timeouts.recovery)
        if transaction.position != self.position:
            return self._follow(transaction.position)
        if transaction.owed:
            return None
        generation = transaction.generation
        assert generation is not None
        try:
            communicator = self._groups.get(generation, self._timeouts.build)
            self.timing.reduced = time.monotonic()
            self._census = None
            census = self._reduce(communicator)
            self._chaos.at(FaultPoint.BEFORE_VOTE)
            self._census = census
            if not self._ledger.enter(self.position, generation):
                raise CommunicatorError(f"generation {generation} was abandoned before the vote")
            self._vote(communicator)
        except CommunicatorError as error:
            self.timing.failed = time.monotonic()
            if self._census is None:
                self._gradients.forget()
            self._ledger.abandon(generation, error)
            return None
        verdict = self._judge(self._census)
        if not self._ledger.decide(self.position, generation, verdict):
            return None
        self._write_decided(verdict)
        self._chaos.at(FaultPoint.AFTER_VOTE)
        self._say_resumed(generation)
        self._groups.retire(generation)
        return self._conclude(verdict, self._census)

    def _reduce(self, communicator: Communicator) -> Census:
        """The census and the mean gradient, all of both complete on this rank when it returns."""
        touched = self._gradients.touched()
        if not self._gradients.finite():
            spoiled = torch.tensor(torch.inf)
            self._contributions = {index: replace(held, peak=spoiled) for index, held in self._contributions.items()}
        self._gradients.exchange(communicator, self._chaos)
        summed = census_module.fill(self._contributions, self._microbatches, touched)
        maxima = self._gradients.maxima().clone()
        device = maxima.device
        summed = summed.to(device)
        pending = [
            communicator.all_reduce(summed, dist.ReduceOp.SUM),
            communicator.all_reduce(maxima, dist.ReduceOp.MAX),
        ]
        for collective in pending:
            collective.wait()
        census = census_module.read(summed, maxima, self._microbatches)
        self._gradients.gather(communicator, census.weight)
        if device.type == "cuda":
            # NCCL only waits on the stream: the vote must not be entered before the sums are really there.
            torch.cuda.synchronize(device)
        return census

    def _vote(self, communicator: Communicator) -> None:
        ballot = torch.ones(1, dtype=torch.int64, device=self._gradients.maxima().device)
        pending = communicator.all_reduce(ballot, dist.ReduceOp.SUM)
        self._chaos.at(FaultPoint.IN_VOTE)
        pending.wait()
        if int(ballot) != communicator.size:
            raise ProtocolError(f"{int(ballot)} of {communicator.size} members voted in a vote that was seen whole")

    def _follow(self, position: Position) -> tuple[Verdict, Census]:
        """A peer has decided our position: we entered the same vote, so we hold the sum and reach the same verdict."""
        if self._census is None:
            raise ProtocolError(f"step {self.position} is called decided, but this rank has no census of it")
        verdict = self._judge(self._census)
        if after(self.position, verdict) != position:
            raise ProtocolError(f"step {self.position} is judged {verdict} here, but its peers went to {position}")
        generation = self._ledger.transaction.generation
        assert generation is not None
        self._write_decided(verdict)
        self._say_resumed(generation)
        return self._conclude(verdict, self._census)

    def _judge(self, census: Census) -> Verdict:
        """A pure function of the census, hence the same on every rank that entered the vote."""
        if census.nonfinite or census.weight == 0:
            return Verdict.STOP
        return Verdict.VOID if self._gradients.misfits(census.maxima) else Verdict.COMMIT

    def _conclude(self, verdict: Verdict, census: Census) -> tuple[Verdict, Census]:
        if verdict is Verdict.STOP:
            self._stop(census)
        if verdict is Verdict.COMMIT:
            self._gradients.publish(census.touched)
        self._gradients.advance(census.maxima, committed=verdict is Verdict.COMMIT)
        return verdict, census

    def _stop(self, census: Census) -> None:
        step = self.position.step
        if census.weight == 0 and not census.nonfinite:
            raise LoopError(f"all microbatches of step {step} have weight 0: there is nothing to average")
        mine = [index for index in census.nonfinite if index in self._contributions]
        for index in mine:
            held = self._contributions[index]
            raise NonFiniteError(
                f"microbatch {index} of step {step} is not finite: its loss is {float(held.loss):g}, "
                f"its largest gradient {float(held.peak):g}; nothing of it was applied"
            )
        # The rank that computed it says so and ends the run; this one waits to be told.
        self._ledger.await_end(self._timeouts.recovery)
        raise NonFiniteError(
            f"microbatch {census.nonfinite[0]} of step {step} is not finite, and the rank that computed it is gone"
        )

    def _write_decided(self, verdict: Verdict) -> None:
        if self._trace:
            self._trace.write(
                "decided",
                step=self.position.step,
                verdict=verdict,
                indices=sorted(self._contributions),
                generation=str(self._ledger.transaction.generation),
                reduced=self.timing.reduced,
                at=time.monotonic(),
            )

    def _say_resumed(self, generation: Generation) -> None:
        """Tell the controller of the first decision in a generation; not on the path of an ordinary step."""
        if self._resumed_in == generation:
            return
        self._resumed_in = generation
        now = time.monotonic()
        timing = self.timing
        self._send(
            Resumed(
                self._ledger.transaction.incarnation,
                generation,
                self.position,
                tuple(timing.spans),
                timing.failed,
                timing.reduced,
                now,
            )
        )

"""One unit of work on the training thread: compute what is owed, reduce, vote; and again if a peer dies."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
import torch.distributed as dist

from ...conf.chaos import FaultPoint
from ...conf.elastic import Timeouts
from ...conf.errors import CommunicatorError
from ...monitors.progress import Activity
from ...policies.world import Generation, Position, Work, WorkKind, World
from ..faults import Chaos
from ..messages import FromRank, Resumed
from .census import Census, Part, Wish
from .communicator import Communicator
from .groups import Groups
from .ledger import Ledger, Rewound, after
from .progress import Board
from .stopwatch import Stopwatch
from .trace import Trace
from .transaction import ProtocolError, Transaction, Verdict


class Unit(Protocol):
    """What is decided together: a training step, or an evaluation."""

    work: Work

    def begin(self) -> None:
        """Empty everything for an attempt."""
        ...

    def reduce(self, communicator: Communicator, part: Part) -> Census:
        """The census and all sums, complete on this rank when it returns.

        Raises:
            CommunicatorError: a collective failed.
        """
        ...

    def forget(self) -> None:
        """A reduction failed before its census: drop what it may still write into."""
        ...

    def judge(self, census: Census) -> Verdict:
        """A pure function of the census, hence the same on every rank that entered the vote."""
        ...

    def conclude(self, verdict: Verdict, census: Census, world: World) -> None:
        """Do what follows from the verdict, after it was decided.

        Raises:
            EverstepError: the run, or this rank, must end.
        """
        ...


@dataclass
class _Timing:
    """When things happened in the unit under way, on this rank's monotonic clock, in seconds."""

    spans: list[tuple[float, float]] = field(default_factory=list)
    failed: float = 0.0
    reduced: float = 0.0


class Engine:
    """Carries one rank through its units of work.

    Args:
        ledger: the transaction.
        groups: where the communicators come from.
        device: of the collectives.
        timeouts: all deadlines.
        chaos: planned faults.
        trace: for those who check from outside.
        send: to the controller.
        wishes: what this rank says of the places where states are saved.
        board: where others see what this rank is at.
    """

    def __init__(
        self,
        ledger: Ledger,
        groups: Groups,
        device: torch.device,
        timeouts: Timeouts,
        chaos: Chaos,
        trace: Trace,
        send: Callable[[FromRank], None],
        wishes: Callable[[], tuple[Wish, ...]] = tuple,
        board: Board | None = None,
    ) -> None:
        self._ledger = ledger
        self._groups = groups
        self._device = device
        self._timeouts = timeouts
        self._chaos = chaos
        self._trace = trace
        self._send = send
        self._wishes = wishes
        self.board = board or Board()
        self._unit: Unit | None = None
        self._census: Census | None = None
        self._part = Part()
        self._beginning = 0
        # By kind of work, seconds per microbatch of the slowest member that contributed to the last unit.
        self._pace: dict[WorkKind, float] = {}
        self._planned: frozenset[int] = frozenset()
        self._computed_here: list[int] = []
        self._resumed_in: Generation | None = None
        self.position = Position(0)
        self.computed = 0
        self.busy = 0.0
        self.stopwatch = Stopwatch(device)
        self.timing = _Timing()
        # In which the newest vote was entered here: the same on all who entered it.
        self.voted_in: World | None = None

    def begin(self, unit: Unit) -> None:
        """Come to the next undecided position, with what the user's loop does there."""
        position = _with_state(self._ledger.await_open(self._timeouts.recovery)).position
        self.position, self._unit = position, unit
        self.board.at(position)
        self._census = None
        self._computed_here = []
        self.timing = _Timing()
        unit.begin()
        transaction = self._ledger.take_up(position, unit.work, self._timeouts.recovery)
        self._beginning = transaction.beginning
        self._planned = frozenset(transaction.indices)
        self._chaos.step, self._chaos.ordinal = position.step, -1

    def next_index(self) -> int | None:
        """The next microbatch to compute, None if nothing is owed. More may be owed after a loss."""
        transaction = self._in_accord(self._ledger.transaction)
        while transaction.position == self.position and not self._through(transaction):
            index = transaction.owed[0]
            if index not in transaction.poison:
                self._chaos.ordinal += 1
                return index
            # Nobody may compute it: it is done, and contributes nothing.
            self._ledger.fold(self.position, index, self._beginning)
            transaction = self._in_accord(self._ledger.transaction)
        return None

    @property
    def members(self) -> int:
        """Ranks in the world now."""
        world = self._ledger.transaction.world
        return len(world.members) if world else 0

    def upcoming(self, index: int, following: Work | None = None) -> tuple[tuple[int, int], ...]:
        """(step, index) of what this rank will compute after ``index``, as far as it knows.

        Args:
            following: what the next step is, to look ahead into it.
        """
        step = self.position.step
        here = tuple((step, other) for other in self._ledger.transaction.owed if other != index)
        if following is None:
            return here
        return here + tuple((step + 1, other) for other in self._ledger.planned(following))

    @property
    def extending(self) -> bool:
        """Whether the microbatch under way was first given to a rank that is lost."""
        owed = self._ledger.transaction.owed
        return bool(owed) and owed[0] not in self._planned

    def last_group(self, index: int) -> tuple[Communicator | None, bool]:
        """The group over which this unit will be reduced, if ``index`` is the last that is owed and it is there.

        Returns:
            It, and whether this rank adds nothing to the sums of it.
        """
        transaction = self._ledger.transaction
        here = (transaction.position, transaction.beginning) == (self.position, self._beginning)
        if not here or transaction.owed != (index,) or transaction.abandoned:
            return None, False
        assert transaction.generation is not None
        return self._groups.ready(transaction.generation), transaction.repeats is not None

    def done(self, index: int, started: float, loading: float = 0.0) -> None:
        """A microbatch is computed, and what it contributes is held by the unit; ``loading`` seconds came before."""
        span = (started, time.monotonic())
        self.computed += 1
        self.busy += span[1] - span[0]
        if self._trains:
            self.stopwatch.stop(loading)
        self.timing.spans.append(span)
        counts = self._ledger.fold(self.position, index, self._beginning)
        if counts:
            self._computed_here.append(index)
        if self._trace:
            event = "computed" if counts else "void"
            self._trace.write(event, step=self.position.step, index=index, span=span, **self._aside())

    def note(self, event: str, **facts: object) -> None:
        """A line for those who check from outside."""
        if self._trace:
            self._trace.write(event, step=self.position.step, **facts)

    def settle(self) -> tuple[Verdict, Census] | None:
        """Reduce and vote once.

        Returns:
            The verdict with its census, or None if the world changed: then compute what is owed and settle again.

        Raises:
            EverstepError: what follows from the verdict is the end of the run, or of this rank.
            ProtocolError: a microbatch was not summed exactly once.
        """
        self.board.doing(Activity.REDUCING)
        transaction = self._in_accord(self._ledger.await_open(self._timeouts.recovery))
        if transaction.position != self.position:
            return self._follow(transaction.position)
        if not self._through(transaction):
            return None
        generation, unit = transaction.generation, self._unit
        assert generation is not None
        assert unit is not None
        try:
            communicator = self._groups.get(generation, self._timeouts.build)
            self.timing.reduced = time.monotonic()
            self._census, self._part = None, self._takes(transaction)
            census = unit.reduce(communicator, self._part)
            self._chaos.at(FaultPoint.BEFORE_VOTE)
            self._census = census
            if not self._ledger.enter(self.position, generation):
                raise CommunicatorError(f"generation {generation} was abandoned before the vote")
            self.voted_in = transaction.world
            self._vote(communicator)
        except CommunicatorError as error:
            self.timing.failed = time.monotonic()
            if self._census is None:
                unit.forget()
            self._ledger.abandon(generation, error)
            return None
        verdict = unit.judge(self._census)
        if not self._ledger.decide(self.position, generation, verdict):
            return None
        self._spend()
        self._write_decided(verdict)
        self._chaos.at(FaultPoint.AFTER_VOTE)
        self._say_resumed(generation)
        self._groups.retire(generation)
        return self._conclude(verdict, self._census)

    def _in_accord(self, transaction: Transaction) -> Transaction:
        """This transaction, once the unit holds no more than it says."""
        transaction = _with_state(transaction)
        if transaction.position == self.position and transaction.beginning != self._beginning:
            # A shadow let go of what it repeats, or a rank of the replica is lost: what is summed is void.
            assert self._unit is not None
            self._unit.begin()
            self._computed_here = []
            self._beginning = transaction.beginning
        return transaction

    def _through(self, transaction: Transaction) -> bool:
        """Whether nothing is computed before the reduction.

        A shadow begins nothing more when the others are through, after what they took the last time: they would wait
        for what adds nothing. So it holds them up by less than one microbatch, however slow it is.
        """
        if transaction.repeats is None or not transaction.owed or transaction.work is None:
            return not transaction.owed
        spent = sum(end - start for start, end in self.timing.spans)
        pace = self._pace.get(transaction.work.kind, 0.0)
        return 0 < pace * len(transaction.indices) <= spent

    def _takes(self, transaction: Transaction) -> Part:
        spans = self.timing.spans
        return Part(
            transaction.repeats is not None,
            transaction.poison & transaction.done,
            transaction.share.dropped,
            sum(end - start for start, end in spans) / len(spans) if spans else 0.0,
            self._wishes(),
        )

    def _vote(self, communicator: Communicator) -> None:
        ballot = torch.ones(1, dtype=torch.int64, device=self._device)
        pending = communicator.all_reduce(ballot, dist.ReduceOp.SUM)
        self._chaos.at(FaultPoint.IN_VOTE)
        pending.wait()
        if int(ballot) != communicator.size:
            raise ProtocolError(f"{int(ballot)} of {communicator.size} members voted in a vote that was seen whole")

    def _follow(self, position: Position) -> tuple[Verdict, Census]:
        """A peer has decided our position: we entered the same vote, so we hold the sum and reach the same verdict."""
        if self._census is None:
            raise ProtocolError(f"step {self.position} is called decided, but this rank has no census of it")
        assert self._unit is not None
        verdict = self._unit.judge(self._census)
        if after(self.position, verdict, self._unit.work.kind) != position:
            raise ProtocolError(f"step {self.position} is judged {verdict} here, but its peers went to {position}")
        generation = self._ledger.transaction.generation
        assert generation is not None
        self._write_decided(verdict)
        self._say_resumed(generation)
        return self._conclude(verdict, self._census)

    def _conclude(self, verdict: Verdict, census: Census) -> tuple[Verdict, Census]:
        assert self._unit is not None
        self._pace[self._unit.work.kind] = census.pace
        world = self._ledger.transaction.world
        assert world is not None
        self._unit.conclude(verdict, census, world)
        self.board.at(self._ledger.transaction.position)
        return verdict, census

    def _write_decided(self, verdict: Verdict) -> None:
        if self._trace:
            self._trace.write(
                "decided",
                step=self.position.step,
                verdict=verdict,
                indices=[] if self._part.shadow else sorted(self._computed_here),
                generation=str(self._ledger.transaction.generation),
                reduced=self.timing.reduced,
                at=time.monotonic(),
                **self._aside(),
            )

    def _aside(self) -> dict[str, object]:
        """Nothing in a training step; what else it is otherwise."""
        assert self._unit is not None
        return {} if self._trains else {"kind": self._unit.work.kind}

    def _spend(self) -> None:
        """A step is decided here, so that all of it is computed: add what it took to what others see."""
        if self._trains:
            self.board.tally.step(self.stopwatch.read(), time.monotonic() - self.timing.reduced)

    @property
    def _trains(self) -> bool:
        """Whether the unit under way is a training step."""
        return self._unit is not None and self._unit.work.kind is WorkKind.TRAINING

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


def _with_state(transaction: Transaction) -> Transaction:
    """The transaction of a rank that holds the state before its position.

    Raises:
        Rewound: it does not, and begins anew with another one.
    """
    if transaction.lacks:
        raise Rewound
    return transaction

"""The training thread of a simulated rank. It mirrors the real loop and engine; what it yields is what it waits for."""

from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from ....actors.messages import Finished, Raised, Ready, Resumed
from ....actors.rank.ledger import RecoveryTimeout, after
from ....actors.rank.transaction import Transaction, Verdict
from ....conf.errors import CommunicatorError
from ....policies.world import Generation, Position, Work, WorkKind
from .checkers import Violation
from .fabric import Collective, Group

if TYPE_CHECKING:
    from .ranks import Rank
    from .simulation import Simulation

T = TypeVar("T")
# Seconds, or until something is true.
Wait = float | Callable[[], bool]
# A part of the thread that waits now and then, and returns something.
Moves = Generator[Wait, None, T]


class Training:
    """What the training thread of one rank holds.

    Attributes:
        position: where the user's loop is.
        work: what it does there.
        sums: indices of this position whose gradients are in the accumulators.
        total: indices of a sum that this rank has seen complete; None while it has none of this position.
        history: everything that this rank has gone through, with how it was decided: its weights are a function of it.
        stage: what the thread is about, for those who look from outside.
    """

    def __init__(self, simulation: "Simulation", rank: "Rank") -> None:
        self._simulation = simulation
        self._rank = rank
        self.position = Position(0)
        self.work = simulation.loop.whole[0][1]
        self.sums: set[int] = set()
        self.total: frozenset[int] | None = None
        self.history: list[tuple[Position, Work]] = []
        self.stage = "start"

    @property
    def _transaction(self) -> Transaction:
        return self._rank.ledger.transaction

    def run(self) -> Moves[None]:
        """From ``begin`` to the end of the training function."""
        simulation, rank = self._simulation, self._rank
        yield simulation.chance.short()
        rank.say(Ready(rank.name, {}, simulation.loop.steps))
        yield self._usable
        for units in simulation.loop.units:
            for work in units:
                yield from self._decide(work)
                self.stage = "apply"
                simulation.faults.strike("apply", rank)
                # What the user does in between; the others may have begun the next unit long ago.
                yield simulation.chance.long() if simulation.chance.of(0.3) else simulation.chance.short()
        rank.say(Finished(rank.name, str(self.history), 0.0, simulation.loop.steps, 0))
        self.stage = "finished"
        simulation.faults.strike("finished", rank)

    def _usable(self) -> bool:
        transaction = self._transaction
        return transaction.generation is not None and not transaction.abandoned

    def _decide(self, work: Work) -> Moves[None]:
        verdict = None
        while verdict is not Verdict.COMMIT:
            yield from self._begin(work)
            verdict = yield from self._attempt()
        self.history.append((self.position, work))

    def _begin(self, work: Work) -> Moves[None]:
        self.position, self.work = self._transaction.position, work
        self.sums = set()
        self.total = None
        while True:
            try:
                self._rank.ledger.take_up(self.position, work, timeout=0)
            except RecoveryTimeout:
                self._simulation.saw("waited to begin")
                yield self._usable
            else:
                return

    def _attempt(self) -> Moves[Verdict]:
        while True:
            yield from self._compute()
            verdict = yield from self._settle()
            if verdict is not None:
                return verdict

    def _compute(self) -> Moves[None]:
        simulation, rank = self._simulation, self._rank
        self.stage = "compute"
        while True:
            transaction = self._transaction
            if transaction.position != self.position or not transaction.owed:
                return
            index = transaction.owed[0]
            simulation.checks.poison(rank, transaction, index)
            if index not in transaction.poison:
                simulation.faults.strike("compute", rank)
                yield simulation.chance.long()
                if rank.raising or simulation.loop.poisons(self.position, self.work, index):
                    yield from self._throw(index)
            self.sums.add(index)
            rank.ledger.fold(self.position, index)

    def _throw(self, index: int) -> Moves[None]:
        rank = self._rank
        rank.hit = True
        training = self.work.kind is WorkKind.TRAINING
        place = f"at {rank.name}" if rank.raising else "at the loss"
        rank.say(Raised(rank.name, self.position, index if training else None, (), place, "bad", ""))
        rank.vanish()
        yield lambda: False

    def _settle(self) -> Moves[Verdict | None]:
        simulation, rank, ledger = self._simulation, self._rank, self._rank.ledger
        self.stage = "report"
        yield self._usable
        transaction = self._transaction
        if transaction.position != self.position:
            if self.total is None:
                raise Violation("only with the whole sum", f"{rank.name} follows at {self.position} but holds no sum")
            simulation.saw("followed")
            return self._judge(transaction.position)
        if transaction.owed:
            return None
        generation = transaction.generation
        assert generation is not None
        meeting = simulation.fabric.meetings[generation]
        self.stage = "built"
        yield lambda: rank.name in meeting.built
        if not meeting.built[rank.name]:
            self._fail(generation)
            return None
        assert transaction.world is not None
        member = transaction.world.member(rank.name)
        assert member is not None
        group = meeting.groups["peers", member.seat.coordinate]
        self.total, self.stage = None, "sum"
        held = (self.position, self.work, frozenset(self.sums))
        total = yield from self._collect(generation, group, "sum", held)
        if total is None:
            self._fail(generation)
            return None
        self.total = simulation.checks.sum(rank, total)
        yield simulation.chance.short()
        if not ledger.enter(self.position, generation):
            self._fail(generation)
            return None
        self.stage = "vote"
        if (yield from self._collect(generation, group, "vote", self.position)) is None:
            self._fail(generation)
            return None
        self.stage = "voted"
        simulation.faults.strike("voted", rank)
        yield simulation.chance.short()
        verdict = simulation.loop.verdict(self.position, self.work)
        if not ledger.decide(self.position, generation, verdict):
            simulation.saw("promised before it saw the vote")
            return None
        simulation.checks.decision(rank, generation)
        simulation.note("{} decides {} as {} in {}", rank.name, self.position, verdict, generation)
        now = simulation.clock.now
        rank.say(Resumed(rank.name, generation, self.position, (), 0.0, now, now))
        return self._judge(self._transaction.position)

    def _collect(
        self, generation: Generation, group: Group, what: str, contribution: object
    ) -> Moves[Mapping[str, Any] | None]:
        collective: Collective = self._simulation.fabric.enter(self._rank, generation, group, what, contribution)
        yield lambda: self._rank.name in collective.outcome
        return collective.entered if collective.outcome[self._rank.name] else None

    def _fail(self, generation: Generation) -> None:
        if self.total is None:
            self._simulation.saw("failed in the sum")
        self._rank.ledger.abandon(generation, CommunicatorError("closed by peer"))

    def _judge(self, following: Position) -> Verdict:
        verdict = self._simulation.loop.verdict(self.position, self.work)
        if after(self.position, verdict, self.work.kind) != following:
            raise Violation(
                "one verdict", f"{self._rank.name} went from {self.position} to {following}, judged {verdict}"
            )
        self._simulation.saw(f"{verdict} of {self.work.kind}")
        self._simulation.checks.verdict(self._rank, verdict)
        return verdict

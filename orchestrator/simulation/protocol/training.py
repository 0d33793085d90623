"""The training thread of a simulated rank. It mirrors the real loop and engine; what it yields is what it waits for."""

from collections.abc import Callable, Generator, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ....actors.messages import Finished, Raised, Ready, Resumed
from ....actors.rank.ledger import RecoveryTimeout, after
from ....actors.rank.transaction import Transaction, Verdict
from ....conf.errors import CommunicatorError
from ....policies.world import Generation, Position, Work, WorkKind
from .checkers import Contribution, Violation
from .corruption import CLEAN, Held
from .fabric import Collective, Group
from .loop import Unit

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
        history: the steps that this rank has gone through; its weights are a function of them.
        untorn: the position whose state before is what the weights hold; None while they are being changed.
        stage: what the thread is about, for those who look from outside.
        awaits: since when it waits for a generation, None if it does not.
        computed: microbatches so far.
        busy: seconds that these took.
        beginning: of the transaction, in which ``sums`` was begun.
        recalled: whether the training function is to begin anew as soon as it calls into everstep again.
        applying: whether it is about to do what was decided last.
        spoiled: what is wrong in its weights.
        voted: generation of the newest vote that it entered.
    """

    def __init__(self, simulation: "Simulation", rank: "Rank") -> None:
        self._simulation = simulation
        self._rank = rank
        self.position = Position(0)
        self.work = simulation.loop.training[0][1]
        self.sums: set[int] = set()
        self.total: frozenset[int] | None = None
        self.history: list[Unit] = []
        self.untorn: Position | None = None
        self.stage = "start"
        self.awaits: float | None = None
        self.computed = 0
        self.busy = 0.0
        self.beginning = 0
        self.recalled = self.applying = False
        self.spoiled = CLEAN
        self.voted: Generation | None = None
        # Whether somebody gave something wrong to the newest sum.
        self._mixed = False

    @property
    def _transaction(self) -> Transaction:
        return self._rank.ledger.transaction

    def run(self) -> Moves[None]:
        """From ``begin`` to the end of the training function."""
        simulation = self._simulation
        yield simulation.chance.short()
        self._rank.say(Ready(self._rank.name, {}, simulation.loop.steps))
        # Whoever is let in later begins anew, at another place.
        yield from self._opened()
        yield from self._train(simulation.loop.begun_at(0, training=False))

    def again(self) -> Moves[None]:
        """The training function begins anew, with the state that another one has, or that was saved, or its own."""
        self.stage, self.untorn, self.total = "fetch", None, None
        self.sums, self.recalled, self.applying, self.voted = set(), False, False, None
        yield from self._fetch()
        transaction = self._transaction
        self._simulation.checks.begun(self._rank, transaction)
        training = transaction.work is not None
        yield from self._train(self._simulation.loop.begun_at(transaction.position.step, training))

    def _train(self, units: Iterable[Unit]) -> Moves[None]:
        """Go through these units."""
        simulation, rank = self._simulation, self._rank
        for step, work in units:
            yield from self._decide(work)
            if self.position.step != step:
                raise Violation("the same units for all", f"{rank.name} does {work} of {step} at {self.position}")
            self.stage, self.applying = "apply", True
            simulation.faults.strike("apply", rank)
            # What the user does in between; the others may have begun the next unit long ago.
            yield simulation.chance.long() if simulation.chance.of(0.3) else simulation.chance.short()
            self.applying = False
            if work.kind is WorkKind.TRAINING:
                self.history.append((step, work))
                self.spoiled |= {f"sum of {step}"} if self._mixed else CLEAN
                simulation.corruption.check(rank, step + 1)
        self.untorn, self.stage = self._transaction.position, "finished"
        while (generation := self._transaction.generation) is not None:
            weights = f"{self.history} {sorted(self.spoiled)}"
            rank.say(Finished(rank.name, generation, weights, 0.0, simulation.loop.steps, 0))
            simulation.faults.strike("finished", rank)
            # Whoever opens a later one needs to hear it there.
            yield partial(self._is_over, generation)

    def _is_over(self, generation: Generation) -> bool:
        return self._transaction.generation != generation

    # --- state

    def _fetch(self) -> Moves[None]:
        """The state before the position of the newest generation."""
        simulation, rank = self._simulation, self._rank
        while True:
            yield from self._opened()
            transaction = self._transaction
            source, restore = transaction.source, transaction.restore
            generation, beginning = transaction.generation, transaction.beginning
            assert generation is not None
            if restore is None and source is None:
                return
            simulation.faults.strike("fetch", rank)
            yield simulation.chance.short()
            if restore is not None:
                saved = simulation.snapshots.read(restore.source, restore.step)
                if saved is None:
                    # Everybody is told to go back further than that.
                    simulation.checks.superseded(rank, generation)
                    rank.ledger.abandon(generation, CommunicatorError("what was saved is gone"))
                    continue
                simulation.corruption.taken(rank, saved)
                held = saved
            else:
                assert source is not None
                yield from self._until(lambda source=source, transaction=transaction:  # type: ignore[misc]
                                       self._gives(source, transaction.position), generation)  # fmt: skip
                giver = simulation.ranks[source]
                if self._transaction is not transaction or giver.training.untorn != transaction.position:
                    rank.ledger.abandon(generation, CommunicatorError(f"{source} is gone"))
                    continue
                held = Held(tuple(giver.training.history), giver.training.spoiled)
            yield simulation.chance.short()
            if rank.ledger.obtain(beginning):
                self.history, self.spoiled = list(held.history), held.spoiled
                return

    def _gives(self, source: str, position: Position) -> bool:
        giver = self._simulation.ranks[source]
        reached = self._simulation.network.heals(source, self._rank.name) <= self._simulation.clock.now
        return giver.alive and not giver.frozen and reached and giver.training.untorn == position

    def _until(self, ready: Callable[[], bool], generation: Generation) -> Moves[None]:
        """Look now and then whether a peer can give what is needed, for as long as this generation lasts."""
        waited = 0.0
        while not ready() and self._transaction.current(generation):
            if waited > self._simulation.scenario.timeouts.build:
                return
            yield 0.05
            waited += 0.05

    # --- one unit of work

    def _usable(self) -> bool:
        transaction = self._transaction
        return transaction.generation is not None and not transaction.abandoned

    def _opened(self) -> Moves[None]:
        """Wait until the newest generation is one in which something can be decided."""
        if not self._usable():
            self.awaits = self._simulation.clock.now
            yield self._usable
            self.awaits = None

    def _decide(self, work: Work) -> Moves[None]:
        verdict = None
        while verdict is not Verdict.COMMIT:
            yield from self._begin(work)
            verdict = yield from self._attempt()
            self.untorn = None

    def _begin(self, work: Work) -> Moves[None]:
        if self.recalled:
            self._rank.recall()
            yield lambda: False
        self.position, self.work = self._transaction.position, work
        self.untorn = self.position
        self.total = None
        self._empty()
        generation = self.voted or self._transaction.generation
        assert generation is not None
        held = Held(tuple(self.history), self.spoiled, generation)
        self._simulation.snapshots.offer(self._rank, self.position, held)
        while True:
            try:
                self._rank.ledger.take_up(self.position, work, timeout=0)
            except RecoveryTimeout:
                self._simulation.saw("waited to begin")
                yield from self._opened()
            else:
                return

    def _empty(self) -> None:
        """Nothing of this position is done: a first attempt, or what was done is void."""
        self.sums = set()
        self.beginning = self._transaction.beginning

    def _attempt(self) -> Moves[Verdict]:
        while True:
            yield from self._compute()
            verdict = yield from self._settle()
            if verdict is not None:
                return verdict

    def _compute(self) -> Moves[None]:
        simulation, rank = self._simulation, self._rank
        self.stage = "compute"
        while (transaction := self._transaction).position == self.position:
            if transaction.beginning != self.beginning:
                simulation.saw("began anew")
                self._empty()
            # A shadow need not be done when the others are.
            if not transaction.owed or (transaction.repeats is not None and simulation.chance.of(0.3)):
                return
            index = transaction.owed[0]
            simulation.checks.poison(rank, transaction, index)
            if index not in transaction.poison:
                simulation.faults.strike("compute", rank)
                seconds = simulation.chance.long()
                yield seconds
                if rank.raising or simulation.loop.poisons(self.position, self.work, index):
                    yield from self._throw(index)
                self.computed += 1
                self.busy += seconds
            if self._transaction.beginning == transaction.beginning:
                self.sums.add(index)
            rank.ledger.fold(self.position, index, transaction.beginning)

    def _throw(self, index: int) -> Moves[None]:
        rank = self._rank
        rank.hit = True
        training = self.work.kind is WorkKind.TRAINING
        place = f"at {rank.name}" if rank.raising else "at the loss"
        rank.say(Raised(rank.name, self.position, index if training else None, (), place, "bad", ""))
        # It stays until a controller has heard of it.
        self.stage = "finished"
        yield lambda: False

    def _settle(self) -> Moves[Verdict | None]:
        simulation, rank, ledger = self._simulation, self._rank, self._rank.ledger
        self.stage = "report"
        yield from self._opened()
        transaction = self._transaction
        if transaction.position != self.position:
            if self.total is None:
                raise Violation("only with the whole sum", f"{rank.name} follows at {self.position} but holds no sum")
            simulation.saw("followed")
            return self._judge(transaction.position)
        if (transaction.owed and transaction.repeats is None) or transaction.beginning != self.beginning:
            return None
        generation, world = transaction.generation, transaction.world
        assert generation is not None
        assert world is not None
        meeting = simulation.fabric.meetings[generation]
        self.stage = "built"
        yield lambda: rank.name in meeting.built
        if not meeting.built[rank.name]:
            self._fail(generation)
            return None
        member = world.member(rank.name)
        assert member is not None
        peers = meeting.groups["peers", member.seat.coordinate]
        self.total, self.stage = None, "sum"
        given = frozenset[int]() if transaction.repeats is not None else frozenset(self.sums)
        held = Contribution(self.position, self.work, given, transaction.share.dropped, self.spoiled)
        entered = yield from self._collect(generation, peers, "sum", held)
        if entered is None:
            self._fail(generation)
            return None
        self.total = simulation.checks.sum(rank, entered)
        self._mixed = simulation.corruption.summed(entered)
        yield simulation.chance.short()
        if not ledger.enter(self.position, generation):
            self._fail(generation)
            return None
        self.stage, self.voted = "vote", generation
        # First inside the replica: whoever votes then speaks for all of its coordinates.
        inside = meeting.groups.get(("replica", member.seat.replica))
        for group, what in ((inside, "whole"), (peers, "vote")):
            if group is not None and (yield from self._collect(generation, group, what, self.position)) is None:
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

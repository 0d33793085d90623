"""One rank of the simulation: the real ledger, and a training thread that is moved on from outside."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from everstep.actors.messages import (
    Fenced,
    Finished,
    FromRank,
    Open,
    Ping,
    Prepare,
    Raised,
    Ready,
    Release,
    Report,
    Resumed,
    ToRank,
)
from everstep.actors.rank.ledger import Ledger, RecoveryTimeout, after
from everstep.actors.rank.transaction import Verdict
from everstep.conf.errors import CommunicatorError
from everstep.policies.workload import Balanced
from everstep.policies.world import Generation, Position, Work, WorkKind

from .protocol_checks import Violation

if TYPE_CHECKING:
    from .protocol_simulation import Simulation

Wait = float | Callable[[], bool]
Thread = Iterator[Wait]


@dataclass
class Collective:
    """One collective of one group: who has entered with what, and how it ended for whom."""

    entered: dict[str, Any] = field(default_factory=dict)
    outcome: dict[str, bool] = field(default_factory=dict)


@dataclass
class Group:
    """All members' ends of one generation."""

    members: tuple[str, ...]
    arrived: list[str] = field(default_factory=list)
    built: dict[str, bool] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)
    collectives: list[Collective] = field(default_factory=list)


class Groups:
    """What the ledger sees of a rank's groups."""

    def __init__(self, rank: "Rank") -> None:
        self._rank = rank

    def open(self, message: Open) -> None:
        self._rank.simulation.arrive(self._rank, message)

    def interrupt(self, generation: Generation) -> None:
        self._rank.simulation.leave(self._rank.name, generation)

    def accused(self, generation: Generation, error: CommunicatorError) -> int | None:
        group = self._rank.simulation.groups.get(generation)
        if group is None or not self._rank.simulation.chance(0.5):
            return None
        faulty = (place for place, name in enumerate(group.members) if self._rank.simulation.ranks[name].hit)
        return next(faulty, None)


class Rank:
    """One rank: a ledger, a training thread that is resumed by the simulation, and a connection."""

    def __init__(self, simulation: "Simulation", name: str) -> None:
        self.simulation = simulation
        self.name = name
        self.alive = False
        self.frozen = False
        self.connected = True
        self.hit = False
        self.raising = False
        self.promised = Generation(0, 0)
        self.heard = 0.0
        self.deferred: list[ToRank] = []
        self.told: dict[Position, frozenset[int]] = {}
        self.thread: Thread = iter(())
        self.waiting: Callable[[], bool] | None = None
        self.position = Position(0)
        self.work = simulation.loop.whole[0][1]
        self.sums: set[int] = set()
        self.total: frozenset[int] | None = None
        self.history: list[tuple[Position, Work]] = []
        self.ledger = Ledger(
            name, self.say, Groups(self), Balanced(),  # type: ignore[arg-type]
            before_report=lambda: simulation.strike("report", self),
        )  # fmt: skip

    def say(self, message: FromRank) -> None:
        if isinstance(message, Report):
            self.promised = max(self.promised, message.abandons)
            if self.ledger.transaction.position == self.position and message.done != self.sums:
                raise Violation(f"{self.name} reports {sorted(message.done)} but holds {sorted(self.sums)}")
        self.simulation.to_controller(self, message)

    def hear(self, message: ToRank) -> None:
        """On the control thread."""
        self.heard = self.simulation.now
        match message:
            case Prepare():
                self.ledger.prepare(message)
            case Open():
                self.simulation.strike("open", self)
                if self.alive:
                    self.told[message.position.first] = message.poison
                    self.ledger.open(message)
            case Fenced() | Release():
                self.simulation.vanish(self)
            case Ping():
                pass

    # --- the training thread; mirrors Run, Step.__iter__ and Engine

    def train(self) -> Thread:
        simulation = self.simulation
        yield simulation.short()
        self.say(Ready(self.name, {}, simulation.loop.steps))
        yield self.usable
        for units in simulation.loop.units:
            for work in units:
                yield from self.decide(work)
                simulation.strike("apply", self)
                # What the user does in between; the others may have begun the next unit long ago.
                yield simulation.long() if simulation.chance(0.3) else simulation.short()
        self.say(Finished(self.name, str(self.history), 0.0, simulation.loop.steps, 0))
        simulation.strike("finished", self)

    def usable(self) -> bool:
        transaction = self.ledger.transaction
        return transaction.generation is not None and not transaction.abandoned

    def decide(self, work: Work) -> Iterator[Any]:
        verdict = None
        while verdict is not Verdict.COMMIT:
            yield from self.begin(work)
            verdict = yield from self.attempt()
        self.history.append((self.position, work))

    def begin(self, work: Work) -> Iterator[Any]:
        self.position, self.work = self.ledger.transaction.position, work
        self.sums = set()
        self.total = None
        while True:
            try:
                self.ledger.take_up(self.position, work, timeout=0)
            except RecoveryTimeout:
                self.simulation.saw("waited to begin")
                yield self.usable
            else:
                return

    def attempt(self) -> Iterator[Any]:
        while True:
            while True:
                transaction = self.ledger.transaction
                if transaction.position != self.position or not transaction.owed:
                    break
                index = transaction.owed[0]
                poison = self.told.get(self.position.first, frozenset())
                if (index in poison) != (index in transaction.poison):
                    raise Violation(f"poison at {self.position} is {poison}, not {transaction.poison}, for {self.name}")
                if index not in poison:
                    self.simulation.strike("compute", self)
                    yield self.simulation.long()
                    if self.raising or self.simulation.loop.poisons(self.position, self.work, index):
                        yield from self.throw(index)
                self.sums.add(index)
                self.ledger.fold(self.position, index)
            verdict = yield from self.settle()
            if verdict is not None:
                return verdict

    def throw(self, index: int) -> Iterator[Any]:
        self.hit = True
        training = self.work.kind is WorkKind.TRAINING
        place = f"at {self.name}" if self.raising else "at the loss"
        self.say(Raised(self.name, self.position, index if training else None, (), place, "bad", ""))
        self.simulation.vanish(self)
        yield lambda: False

    def settle(self) -> Iterator[Any]:
        simulation, ledger = self.simulation, self.ledger
        yield self.usable
        transaction = ledger.transaction
        if transaction.position != self.position:
            if self.total is None:
                raise Violation(f"{self.name} follows at {self.position} but holds no sum")
            simulation.saw("followed")
            return self.judge(transaction.position)
        if transaction.owed:
            return None
        generation = transaction.generation
        assert generation is not None
        group = simulation.groups[generation]
        yield lambda: self.name in group.built
        if not group.built[self.name]:
            return self.fail(generation)
        self.total = None
        total = yield from self.collect(group, "sum", (self.position, self.work, frozenset(self.sums)))
        if total is None:
            return self.fail(generation)
        self.total = simulation.checks.sum(self, total)
        yield simulation.short()
        if not ledger.enter(self.position, generation):
            return self.fail(generation)
        if (yield from self.collect(group, "vote", self.position)) is None:
            return self.fail(generation)
        simulation.strike("voted", self)
        yield simulation.short()
        verdict = simulation.loop.verdict(self.position, self.work)
        if not ledger.decide(self.position, generation, verdict):
            simulation.saw("promised before it saw the vote")
            return None
        simulation.checks.decision(self, generation)
        simulation.note(f"{self.name} decides {self.position} as {verdict} in {generation}")
        self.say(Resumed(self.name, generation, self.position, (), 0.0, simulation.now, simulation.now))
        return self.judge(ledger.transaction.position)

    def collect(self, group: Group, what: str, contribution: object) -> Iterator[Any]:
        collective = self.simulation.enter(self, group, what, contribution)
        yield lambda: self.name in collective.outcome
        return collective.entered if collective.outcome[self.name] else None

    def fail(self, generation: Generation) -> None:
        if self.total is None:
            self.simulation.saw("failed in the sum")
        self.ledger.abandon(generation, CommunicatorError("closed by peer"))

    def judge(self, following: Position) -> Verdict:
        verdict = self.simulation.loop.verdict(self.position, self.work)
        if after(self.position, verdict, self.work.kind) != following:
            raise Violation(f"{self.name} went from {self.position} to {following}, judged {verdict}")
        self.simulation.saw(f"{verdict} of {self.work.kind}")
        self.simulation.checks.verdict(self, verdict)
        return verdict

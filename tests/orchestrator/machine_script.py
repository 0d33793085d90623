"""Plays a run to the machine, event by event, and keeps what it answered. Time moves only when it is told to."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from everstep.actors.messages import (
    Finished,
    FromRank,
    Heartbeat,
    Hello,
    Joined,
    Open,
    Prepare,
    Raised,
    Ready,
    Report,
    Resumed,
    StepRecord,
    ToRank,
)
from everstep.conf.elastic import Timeouts
from everstep.orchestrator.machine.events import (
    Action,
    Ended,
    EndRun,
    Event,
    Heard,
    KillRank,
    Record,
    Send,
    Started,
    StartRank,
    StoreOpened,
    Tick,
)
from everstep.orchestrator.machine.look import look
from everstep.orchestrator.machine.settings import Settings
from everstep.orchestrator.machine.state import Standing, State
from everstep.orchestrator.machine.transition import advance
from everstep.orchestrator.view import Phase, RunState
from everstep.policies.recovery import RecoveryPolicy, Shrink
from everstep.policies.workload import Balanced
from everstep.policies.world import Generation, Position, Work, WorkKind

Message = TypeVar("Message")
START = Position(0)


def name(rank: int) -> str:
    return f"rank-{rank}"


def record_of(step: int, seconds: float = 0.5, **numbers: float) -> StepRecord:
    """What every rank says of a step."""
    rates = {"AdamW": 1 / (1 + step)}
    return StepRecord(step, 4.0 / (1 + step), 100.0, seconds, rates, numbers, None, 8, 4, 1000.0 + step, 600.0)


def generation(number: int) -> Generation:
    return Generation(1, number)


@dataclass
class Script:
    """A run of ``ranks`` ranks, and ``spares`` beside them that come after the last seat.

    Attributes:
        answered: actions of the last event.
        history: actions of all events.
    """

    ranks: int = 4
    minimum: int = 1
    microbatches: int = 8
    steps: int = 5
    skip_poison: bool = False
    spares: int = 0
    replaces: bool = False
    size: int = 1
    recovery: RecoveryPolicy = field(default_factory=Shrink)
    timeouts: Timeouts = field(default_factory=Timeouts)
    now: float = 100.0
    answered: list[Action] = field(default_factory=list)
    history: list[Action] = field(default_factory=list)

    def __post_init__(self) -> None:
        settings = Settings(
            "test",
            1,
            tuple(map(name, range(self.ranks + self.spares))),
            self.minimum,
            Balanced(),
            self.timeouts,
            ranks_per_replica=self.size,
            store_prefix="root",
            skip_poison=self.skip_poison,
            spares=self.spares,
            replaces=self.replaces,
            recovery=self.recovery,
        )
        self.state = State(settings)

    # --- what happens

    def happen(self, event: Event) -> list[Action]:
        self.state, self.answered = advance(self.state, event, self.now)
        self.history += self.answered
        return self.answered

    def hear(self, rank: int, message: FromRank) -> list[Action]:
        return self.happen(Heard(name(rank), message))

    def end(self, *ranks: int, cause: str = "its process ended with signal 9") -> list[Action]:
        return [action for rank in ranks for action in self.happen(Ended(name(rank), cause))]

    def tick(self, seconds: float = 0.5, asleep: float = 0.0) -> list[Action]:
        self.now += seconds
        return self.happen(Tick(asleep))

    def wait(self, seconds: float, *beating: int) -> list[Action]:
        """Let time go by, tick by tick, while these ranks say that they live."""
        actions = []
        end = self.now + seconds
        while self.now < end - 1e-9:
            self.now += min(0.5, end - self.now)
            for rank in beating:
                self.beat(rank)
            actions += self.happen(Tick())
        return actions

    def start(self) -> "Script":
        """Ask for the ranks, and open the store."""
        self.happen(Started())
        self.happen(StoreOpened("host", 1234))
        return self

    def greet(self, *ranks: int, node: str = "node", **environment: str) -> None:
        for rank in ranks:
            self.hear(rank, Hello(name(rank), 1000 + rank, node, environment))

    def ready(self, *ranks: int, **facts: str) -> list[Action]:
        signatures = {"weight": facts.pop("weight", "digest")}
        steps = int(facts.pop("steps", str(self.steps)))
        return [action for rank in ranks for action in self.hear(rank, Ready(name(rank), signatures, steps, facts))]

    def boot(self) -> "Script":
        """Up to the first generation."""
        self.start()
        self.greet(*range(self.ranks + self.spares))
        self.ready(*range(self.ranks, self.ranks + self.spares), *range(self.ranks))
        assert self.state.phase is Phase.RUNNING
        return self

    def beat(self, rank: int, step: int = 0, held: int = 0, records: Iterable[int] = ()) -> list[Action]:
        """``records`` are the steps whose records come along."""
        kept = tuple(map(record_of, records))
        return self.hear(rank, Heartbeat(name(rank), Position(step), "training", held=held, records=kept))

    def report(
        self,
        rank: int,
        position: Position = START,
        done: tuple[int, ...] = (),
        owed: tuple[int, ...] | None = None,
        cause: str | None = None,
        accused: int | None = None,
        abandons: int | None = None,
        work: Work | None = None,
        begun: bool = True,
    ) -> list[Action]:
        """By default it has begun a training step, and owes the rest of its share."""
        world = self.state.world
        assert world is not None
        work = (work or self.training) if begun else None
        if owed is None:
            owed = tuple(sorted(set(self.indices(rank)) - set(done))) if begun else ()
        gave_up = world.generation if abandons is None else generation(abandons)
        who = None if accused is None else name(accused)
        held = (position, frozenset(done), frozenset(owed))
        return self.hear(rank, Report(name(rank), gave_up, *held, cause, who, work))

    def join(self, *ranks: int) -> None:
        for rank in ranks:
            self.hear(rank, Joined(name(rank), self.generation, 0.01))

    def resume(self, *ranks: int, step: int = 0) -> None:
        for rank in ranks:
            self.hear(rank, Resumed(name(rank), self.generation, Position(step), (), 0.0, self.now, self.now))

    def recover(self, *ranks: int) -> None:
        """These survive: they report what they hold, meet, and decide."""
        for rank in ranks:
            self.report(rank)
        self.join(*ranks)
        self.resume(*ranks)

    def finish(self, *ranks: int, weights: str = "weights", state: str = "state") -> list[Action]:
        return [
            action
            for rank in ranks
            for action in self.hear(
                rank,
                Finished(name(rank), self.generation, weights, 0.5, self.steps, 10, {"x": float(rank)}, state),
            )
        ]

    def fail_in(
        self,
        rank: int,
        microbatch: int | None = 3,
        position: Position = START,
        at: str = "train.py:1",
        final: bool = False,
    ) -> list[Action]:
        """The user's code raises on this rank."""
        samples = () if microbatch is None else (40 + microbatch, 50 + microbatch)
        error = f"ValueError: bad ({at})"
        return self.hear(
            rank, Raised(name(rank), position, microbatch, samples, f"ValueError at {at}", error, "trace", final)
        )

    # --- what came of it

    @property
    def generation(self) -> Generation:
        assert self.state.world is not None
        return self.state.world.generation

    @property
    def look(self) -> RunState:
        return look(self.state, self.now)

    @property
    def training(self) -> Work:
        return Work(WorkKind.TRAINING, self.microbatches)

    def indices(self, rank: int) -> tuple[int, ...]:
        """What the newest generation gave to a rank, or the share that it plans for itself if nobody had begun."""
        opened = sent(self.history, rank, Open)[-1]
        if opened.work is not None:
            return opened.indices[name(rank)]
        return Balanced().plan(opened.world.replicas, self.microbatches).indices[rank]

    def standing(self, rank: int) -> Standing:
        return self.state.ranks[name(rank)].standing

    def records(self, what: str) -> list[Record]:
        return [action for action in self.history if isinstance(action, Record) and action.what == what]

    @property
    def error(self) -> str:
        assert self.state.phase is Phase.FAILED
        assert self.state.error is not None
        assert "\n" not in self.state.error
        assert any(isinstance(action, EndRun) for action in self.history)
        return self.state.error


def sent(actions: list[Action], rank: int, kind: type[Message]) -> list[Message]:
    """Messages of this kind that went to this rank."""
    return [
        action.message
        for action in actions
        if isinstance(action, Send) and action.incarnation == name(rank) and isinstance(action.message, kind)
    ]


def addressees(actions: list[Action], kind: type[ToRank]) -> list[int]:
    """Ranks to which a message of this kind went."""
    return [
        int(action.incarnation.removeprefix("rank-"))
        for action in actions
        if isinstance(action, Send) and isinstance(action.message, kind)
    ]


def killed(actions: list[Action]) -> list[int]:
    return [int(action.incarnation.removeprefix("rank-")) for action in actions if isinstance(action, KillRank)]


def asked_for(actions: list[Action]) -> list[int]:
    return [int(action.incarnation.removeprefix("rank-")) for action in actions if isinstance(action, StartRank)]


def prepared(actions: list[Action]) -> list[tuple[int, int]]:
    """(rank, number of the generation) of every Prepare."""
    return [
        (int(action.incarnation.removeprefix("rank-")), action.message.generation.number)
        for action in actions
        if isinstance(action, Send) and isinstance(action.message, Prepare)
    ]

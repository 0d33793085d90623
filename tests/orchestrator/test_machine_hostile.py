"""Ranks that say what cannot be true: the machine refuses it or ends the run in one line, and never raises itself."""

from collections.abc import Callable
from dataclasses import replace
from math import inf, nan
from random import Random

import pytest
from everstep.actors.messages import (
    Finished,
    FromRank,
    Heartbeat,
    Hello,
    Joined,
    Raised,
    Ready,
    Report,
    Resumed,
    Serving,
    StepRecord,
)
from everstep.conf.elastic import Timeouts
from everstep.monitors.spent import Spent
from everstep.orchestrator.machine.events import (
    Ended,
    Event,
    Heard,
    Lost,
    Record,
    Room,
    Saved,
    Started,
    StoreOpened,
    Tick,
    TookOver,
)
from everstep.orchestrator.machine.look import look
from everstep.orchestrator.machine.memory import note
from everstep.orchestrator.machine.past import KnownRank, Past
from everstep.orchestrator.machine.plausible import impossible
from everstep.orchestrator.machine.settings import Settings
from everstep.orchestrator.machine.state import Standing, State
from everstep.orchestrator.machine.transition import advance
from everstep.policies.recovery import RecoveryPolicy, recovery_policy
from everstep.policies.workload import AdaptiveWorld, Balanced, Versatile, Weighted, WorkloadPolicy
from everstep.policies.world import Generation, Member, Position, Seat, Work, WorkKind, World
from hypothesis import given, settings
from hypothesis import strategies as st

from .machine_script import Script, name

NAMES = [f"rank-{place}" for place in range(6)]
WORKLOADS: dict[str, Callable[[], WorkloadPolicy]] = {
    "balanced": Balanced,
    "versatile": Versatile,
    "weighted": Weighted,
    "adaptive_world": AdaptiveWorld,
}


class Liar:
    """Says well-typed things about a state that mean nothing, or something wrong; more or less often."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.often = chance.choice([0.03, 0.2, 1.0])

    @property
    def lies(self) -> bool:
        return self.chance.random() < self.often

    def says(self, state: State) -> Event:
        pick = self.chance
        speaker = pick.choice([*NAMES, *state.ranks])
        once = [self.hello, self.ready, self.joined, self.resumed, self.raised, self.finished, self.serving]
        kind = pick.choice([*[self.report] * 6, self.beat, self.beat, self.other, self.other, *once])
        said = kind(speaker, state)
        return Heard(speaker, said) if isinstance(said, FromRank) else said

    def report(self, who: str, state: State) -> FromRank:
        pick = self.chance
        promised = pick.choice([None, self.generation(state), self.generation(state)])
        accused = pick.choice([None, *NAMES])
        repeats = pick.choice([None, None, 0, 1, 2, 7, -1]) if self.lies else None
        done, owed = (self.indices(), self.indices()) if self.lies else self.given(who, state)
        return Report(who, self.generation(state), self.position(state), done, owed, pick.choice([None, "closed"]),
                      accused, self.work(), repeats, promised, self.lies and pick.random() < 0.2)  # fmt: skip

    def given(self, who: str, state: State) -> tuple[frozenset[int], frozenset[int]]:
        """What it has done and what it owes, if it was told."""
        held = sorted(state.opened.indices.get(who, ())) if state.opened else []
        done = self.chance.randrange(len(held) + 1)
        return frozenset(held[:done]), frozenset(held[done:])

    def beat(self, who: str, state: State) -> FromRank:
        records = tuple(self.record() for _ in range(self.chance.randrange(3)))
        where = self.chance.choice([None, self.generation(state)])
        return Heartbeat(who, self.position(state), "", self.count(), self.count(), records, self.work(), self.number(),
                         where)  # fmt: skip

    def hello(self, who: str, state: State) -> FromRank:
        seat = self.chance.choice([None, self.seat()])
        return Hello(who, self.count(), self.chance.choice(["", "a", "b"]), {}, seat)

    def ready(self, who: str, state: State) -> FromRank:
        return Ready(who, {"w": "digest"}, self.chance.choice([5, 5, 5, 0, -1]), {}, self.count())

    def joined(self, who: str, state: State) -> FromRank:
        return Joined(who, self.generation(state), self.number())

    def resumed(self, who: str, state: State) -> FromRank:
        return Resumed(who, self.generation(state), self.position(state), (), *(self.number() for _ in range(3)))

    def raised(self, who: str, state: State) -> FromRank:
        pick = self.chance
        place = pick.choice([None, *range(-1, 9)])
        return Raised(
            who, self.position(state), place, (), pick.choice("ab"), "error", "trace", self.lies and pick.random() < 0.2
        )

    def finished(self, who: str, state: State) -> FromRank:
        return Finished(
            who,
            self.generation(state),
            self.chance.choice("aab") if self.lies else "a",
            self.number(),
            self.count(),
            self.count(),
        )

    def serving(self, who: str, state: State) -> FromRank:
        """Any world that could travel: what is none cannot be decoded."""
        pick = self.chance
        size = pick.choice([1, 1, 2])
        held = pick.sample(NAMES, pick.choice([2, 4, 6]))
        members = tuple(Member(each, Seat(place // size, place % size), "a") for place, each in enumerate(held))
        world = World(self.generation(state), members, size)
        anew = frozenset(pick.sample(NAMES, pick.randrange(4)))
        poison = {self.count(): self.indices()}
        return Serving(who, world, pick.random() < 0.5, self.position(state), self.work(), poison, anew,
                       pick.random() < 0.5)  # fmt: skip

    def other(self, who: str, state: State) -> Event:
        pick = self.chance
        source, step = pick.choice(["vault", "storage"]), pick.randrange(6)
        lost = Lost(source, step, pick.choice([None, 0, 3]), "torn")
        return pick.choice([Tick(), Tick(), Ended(who, "killed"), Room(pick.randrange(3)), Saved(source, step), lost])

    def generation(self, state: State) -> Generation:
        """One that matters more often than not."""
        if state.world is None or (self.lies and self.chance.random() < 0.2):
            return Generation(self.chance.randrange(3), self.chance.randrange(5))
        prepared = state.recovery.generation if state.recovery is not None else state.world.generation
        return self.chance.choice([state.world.generation, state.world.generation, prepared])

    def position(self, state: State) -> Position:
        if state.opened is not None and not self.lies:
            return state.opened.position
        return Position(
            self.chance.choice([0, 0, 0, 1, 2, 5, -1]), *self.chance.choice([(0, 0), (0, 0), (1, 0), (0, 1)])
        )

    def work(self) -> Work | None:
        if not self.lies:
            return Work(WorkKind.TRAINING, 8)
        kind = self.chance.choice([WorkKind.TRAINING, WorkKind.TRAINING, WorkKind.EVALUATION])
        return self.chance.choice([None, *[Work(kind, 8)] * 6, Work(kind, self.chance.choice([9, 1, 0, -3]))])

    def indices(self) -> frozenset[int]:
        pick = self.chance
        return frozenset(pick.sample([*range(9), -1, 99], pick.choice([0, 1, 1, 2, 4])))

    def seat(self) -> Seat:
        return Seat(self.chance.randrange(-1, 5), self.chance.choice([0, 0, 1, 2, -1]))

    def record(self) -> StepRecord:
        return StepRecord(self.count(), *(self.number() for _ in range(3)), {}, {}, None, self.count(), self.count(),
                          self.number(), self.chance.choice([None, self.number()]))  # fmt: skip

    def count(self) -> int:
        return self.chance.choice([0, 1, 2, 3, 5, 10, -1, 10**9])

    def number(self) -> float:
        return self.chance.choice([0.0, 0.1, 1.0, 1.5, 1e9, -1.0, nan, inf, -inf])


class Listener:
    """A machine whose answers are looked at, noted and thrown away."""

    def __init__(self, chance: Random, workload: WorkloadPolicy, recovery: RecoveryPolicy) -> None:
        held = {"ranks_per_replica": chance.choice([1, 2]), "spares": 2, "replaces": True, "lives": "+"}
        more = {"skip_poison": chance.random() < 0.5, "timeouts": Timeouts()}
        self.chance = chance
        self.state = State(Settings("test", 1, tuple(NAMES), 1, workload, recovery=recovery, **held, **more))  # type: ignore[arg-type]
        self.now = 100.0

    def hear(self, event: Event, seconds: float = 0.1) -> None:
        self.now += seconds
        before = self.state
        self.state, _ = advance(before, event, self.now)
        note(before, self.state)
        look(self.state, self.now)
        assert self.state.error is None or "\n" not in self.state.error
        starting = {name for name, rank in self.state.ranks.items() if rank.standing is Standing.STARTING}
        assert self.state.adoption is not None or starting <= set(self.state.coming)

    def boot(self) -> "Listener":
        self.hear(Started())
        self.hear(StoreOpened("host", 1))
        for place, each in reversed(list(enumerate(NAMES))):
            self.hear(Heard(each, Hello(each, 1000 + place, "ab"[place % 2])))
            self.hear(Heard(each, Ready(each, {"w": "digest"}, 5)))
        assert self.state.world is not None
        return self

    def take_over(self) -> "Listener":
        liar, chance = Liar(self.chance), self.chance
        known = {each: KnownRank(each, chance.choice([None, liar.seat()])) for each in NAMES if chance.random() < 0.7}
        living = chance.choice([None, frozenset(NAMES[: chance.randrange(6)])])
        self.hear(TookOver(Past(ranks=known, generation=chance.choice(["", "1.1"])), living, 0.0))
        self.hear(StoreOpened("host", 1))
        return self

    def play(self, events: int) -> None:
        liar = Liar(self.chance)
        for _ in range(events):
            self.hear(liar.says(self.state), self.chance.choice([0.0, 0.1, 0.1, 4.0, 40.0]))


@pytest.mark.parametrize("workload", WORKLOADS)
@settings(max_examples=50, deadline=None)
@given(st.integers(0, 1_000_000))
def test_nothing_that_ranks_say_makes_the_machine_raise(workload: str, seed: int) -> None:
    chance = Random(seed)
    recovery = recovery_policy(chance.choice(["auto", "swap", "shrink", "restart"]))
    Listener(chance, WORKLOADS[workload](), recovery).boot().play(events=60)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 1_000_000))
def test_nor_does_it_when_a_controller_takes_over(seed: int) -> None:
    chance = Random(seed)
    Listener(chance, Balanced(), recovery_policy("auto")).take_over().play(events=60)


def test_two_replicas_that_have_the_same_microbatch_end_the_run_and_are_named() -> None:
    script = Script(ranks=4).boot()
    script.end(1)
    script.report(0, done=(0, 1))
    script.report(2, Position(0), done=(0, 4), owed=(5,))
    script.report(3, done=(6, 7))
    assert script.error == (
        "step 0: microbatches [0] are held by more than one of replicas [0, 2], as ranks 0.0, 2.0 report"
    )


def test_a_microbatch_that_the_step_has_not_ends_the_run_and_its_replica_is_named() -> None:
    script = Script(ranks=4, size=2).boot()
    script.end(3)
    script.report(0, Position(2), done=(0, 8), owed=())
    script.report(1, Position(2), done=(0,), owed=())
    script.report(2, Position(2), done=(), owed=())
    assert script.error == "step 2: microbatches [8] of replicas [0] are not all in 0..7, as ranks 0.0, 0.1 report"


HERE, TRAINING = Position(3), Work(WorkKind.TRAINING, 8)
NOWHERE, NO_WORK = Position(-1), Work(WorkKind.TRAINING, 0)
RECORD = StepRecord(3, nan, 1.0, 0.5, {}, {}, None, 8, 4, 0.0)
PAIRS = World(Generation(1, 1), (Member("a", Seat(0, 0)), Member("b", Seat(0, 1))), 2)


def told(**fields: object) -> Report:
    held = {"position": HERE, "done": frozenset(), "owed": frozenset(), "work": TRAINING, **fields}
    return Report("a", Generation(1, 1), **held)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (told(), None),
        (told(position=NOWHERE), "it is at step -1, unit 0, attempt 0"),
        (told(position=Position(0, -1)), "it is at step 0, unit -1, attempt 0"),
        (told(position=Position(0, 0, -1)), "it is at step 0, unit 0, attempt -1"),
        (told(work=NO_WORK), "at step 3 it does training over 0 microbatches"),
        (told(work=Work(WorkKind.EVALUATION, 1)), None),
        (told(work=None), None),
        (told(work=None, done=frozenset({1}), owed=frozenset({0})), "at step 3 it has begun nothing, and has [0, 1]"),
        (Heartbeat("a", HERE, ""), None),
        (Heartbeat("a", NOWHERE, ""), "it is at step -1, unit 0, attempt 0"),
        (Heartbeat("a", HERE, "", work=NO_WORK), "at step 3 it does training over 0 microbatches"),
        (Heartbeat("a", HERE, "", computed=-1), "computed=-1"),
        (Heartbeat("a", HERE, "", busy=inf), "busy=inf"),
        (Heartbeat("a", HERE, "", spent=Spent(3, -1.0)), "compute=-1.0"),
        (Heartbeat("a", HERE, "", held=-1), "held=-1"),
        (Heartbeat("a", HERE, "", records=(RECORD,)), None),
        (Heartbeat("a", HERE, "", records=(RECORD, RECORD)), "the records that it keeps are of steps [3, 3]"),
        (Heartbeat("a", HERE, "", records=(replace(RECORD, seconds=nan),)), "seconds=nan"),
        (Serving("a", PAIRS, False, HERE), None),
        (Serving("a", replace(PAIRS, members=(), ranks_per_replica=3), False, HERE), "its world has 3 ranks in a "
         "replica, not 2"),
        (Serving("a", PAIRS, False, NOWHERE), "it is at step -1, unit 0, attempt 0"),
        (Resumed("a", Generation(1, 1), HERE, (), 0.0, 1.0, 2.0), None),
        (Resumed("a", Generation(1, 1), HERE, (), 0.0, nan, 2.0), "reduced=nan"),
        (Resumed("a", Generation(1, 1), NOWHERE, (), 0.0, 1.0, 2.0), "it is at step -1, unit 0, attempt 0"),
        (Ready("a", {}, 0), None),
        (Ready("a", {}, -1), "steps=-1"),
        (Raised("a", NOWHERE, None, (), "", "", ""), "it is at step -1, unit 0, attempt 0"),
        (Finished("a", Generation(1, 1), "", nan, 5, -1), "computed=-1"),
        (Joined("a", Generation(1, 1), -1.0), None),
    ],
)  # fmt: skip
def test_what_cannot_be_true(message: FromRank, why: str | None) -> None:
    assert impossible(message, size=2) == why


def test_what_cannot_be_true_changes_nothing_and_is_told_to_the_journal() -> None:
    script = Script(ranks=2).boot()
    before = script.state
    script.hear(0, Heartbeat(name(0), NOWHERE, "training"))
    facts = {"rank": name(0), "message": "Heartbeat", "why": "it is at step -1, unit 0, attempt 0"}
    assert script.answered == [Record("refused, it cannot be true", facts=facts)]
    assert script.state is before


def test_a_spare_comes_while_the_first_member_has_not_said_yet_what_it_built() -> None:
    """A controller that took over knows members from what they serve; that they are ready may come later."""
    world = World(Generation(1, 1), (Member("0000-a", Seat(0)), Member("0001-a", Seat(1))))
    state = State(Settings("test", 2, ("0000-b",), 1, Balanced(), Timeouts()))
    story: list[tuple[Event, float]] = [(TookOver(Past(), None, 0.0), 0.0), (StoreOpened("host", 1), 0.0)]
    for each in ("0000-a", "0001-a"):
        story += [(Heard(each, Hello(each, 7, "node")), 1.0), (Heard(each, Serving(each, world, False, HERE)), 1.0)]
    story += [(Heard("0001-a", Ready("0001-a", {"w": "1"}, 5)), 1.0), (Heard("0002-a", Hello("0002-a", 9, "n")), 1.0)]
    story += [(Tick(), 2.0 + Timeouts().adopt), (Heard("0002-a", Ready("0002-a", {"w": "1"}, 5)), 99.0)]
    for event, now in story:
        state, _ = advance(state, event, now)
    assert list(state.parked) == ["0002-a"]

"""The controller's whole memory, as immutable values."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from immutables import Map

from ...actors.messages import Finished, Open, Raised, Ready, Report, Serving, StepRecord
from ...monitors.certification import Trust
from ...monitors.progress import ProgressRecord
from ...monitors.spent import Spent
from ...policies import quarantine
from ...policies.changes import Changes
from ...policies.placement import Node
from ...policies.retention import Undone
from ...policies.values import changed
from ...policies.world import Generation, Position, Seat, Work, World
from ..view import Phase, RecoveryRecord, VerdictRecord
from .distrust import Norms, OpenCheck, Rollback
from .events import Event, Found
from .past import Past
from .settings import Settings
from .watch import Rounds, Stability, Standstill, Watch

# A set of incarnations; what is done at every message must not take longer in a larger world.
Names = Map[str, None]
NOBODY: Names = Map()


def names(incarnations: Iterable[str]) -> Names:
    """These incarnations as a set."""
    return Map(dict.fromkeys(incarnations))


def without(held: Names, incarnation: str) -> Names:
    """The set without one of them, whether it was there or not."""
    return held.delete(incarnation) if incarnation in held else held


class Standing(StrEnum):
    """What a rank is to the run."""

    STARTING = "starting"
    READY = "ready"
    MEMBER = "member"
    SUSPECT = "suspect"
    FENCED = "fenced"
    FINISHED = "finished"
    LEFT = "left"
    GONE = "gone"

    living: bool

    def __init__(self, said: str) -> None:
        # Looked up for every rank at every turn: an attribute costs a tenth of a property that compares.
        self.living = said not in ("fenced", "left", "gone")


@dataclass(frozen=True)
class Rank:
    """What the controller knows of one rank.

    Attributes:
        seat: its place in the world; None while it has none: a spare, or one that is still to join.
        asked: when it was asked for.
        start_s: seconds from there until it was ready.
        computed: microbatches that it has computed, as last heard.
        busy: seconds that these took.
        progress: what its training thread is at, as last heard.
        told_at: when that was.
        spent: what training steps have cost it, as last heard; None before that.
        held: oldest step whose record it keeps, or will keep, as last heard.
        report: its newest one; it counts while the world is the one that it abandons.
        suspected: when it became suspect; the probe's deadline counts from here.
        fenced: when it was fenced; the confirmation's deadline counts from here.
    """

    incarnation: str
    seat: Seat | None = None
    standing: Standing = Standing.STARTING
    node: str = ""
    pid: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    ready: Ready | None = None
    asked: float = 0.0
    start_s: float = 0.0
    last_heard: float = 0.0
    position: Position = Position(0)
    stage: str = ""
    computed: int = 0
    busy: float = 0.0
    progress: ProgressRecord | None = None
    told_at: float = 0.0
    spent: Spent | None = None
    held: int = 0
    report: Report | None = None
    suspected: float = 0.0
    fenced: float = 0.0
    cause: str = ""
    raised: Raised | None = None
    finished: Finished | None = None

    @property
    def facts(self) -> dict[str, object]:
        """For the journal."""
        seat = None if self.seat is None else str(self.seat)
        return {"rank": self.title, "incarnation": self.incarnation, "seat": seat}

    @property
    def title(self) -> str:
        """As people know it."""
        return f"spare {self.incarnation}" if self.seat is None else f"rank {self.seat}"


@dataclass(frozen=True)
class Recovery:
    """The one change of the world under way; new losses join it.

    Attributes:
        generation: that it prepares or has opened.
        planned: True while nobody is lost: ranks join or leave.
        guessed: True while ``cause`` is a failed collective and no death explains it yet.
        before: ranks in the world when it began.
        started: when the first sign came.
        prepared: when the members were asked to report; the deadline of their reports counts from here.
        waiting: since when it waits for capacity, 0 if it does not.
        deadline: when that wait ends.
        silent: members that have not reported yet.
        opened: when the new generation was sent out, 0 while it is not.
        unbuilt: members that have not built the new group yet.
        pending: members that have not decided their first position in it yet, nor finished.
        reducing: seconds that the longest reduction with its vote took.
        stamps: times at which the phases ended.
    """

    generation: Generation
    before: int
    cause: str
    started: float
    planned: bool = False
    guessed: bool = False
    prepared: float = 0.0
    waiting: float = 0.0
    deadline: float = 0.0
    step: int = 0
    silent: Names = NOBODY
    opened: float = 0.0
    lost: tuple[Seat, ...] = ()
    lost_microbatches: tuple[int, ...] = ()
    unbuilt: Names = NOBODY
    pending: Names = NOBODY
    reducing: float = 0.0
    stamps: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""

    def without(self, incarnation: str) -> "Recovery":
        """Nothing is expected any more of a rank that is gone."""
        return changed(
            self,
            silent=without(self.silent, incarnation),
            unbuilt=without(self.unbuilt, incarnation),
            pending=without(self.pending, incarnation),
        )


@dataclass(frozen=True)
class Adoption:
    """What a controller that has taken over has found so far.

    Attributes:
        began: when it took over.
        at: the same in seconds since the epoch.
        past: what the journals say.
        living: incarnations that the cluster knows to live; None if it does not say.
        serving: where each rank stands that has a world.
        world: the newest of theirs.
        awaited: whoever must be heard of before the run goes on.
        later: events that are heard when it does, in their order.
    """

    began: float
    at: float
    past: Past
    living: frozenset[str] | None
    serving: Map[str, Serving] = field(default_factory=Map)
    world: World | None = None
    awaited: Names = NOBODY
    later: Map[int, Event] = field(default_factory=Map)


@dataclass(frozen=True)
class State:
    """Everything that the machine knows.

    Attributes:
        world: the newest one.
        opened: the message that opened it.
        anew: members that began with nothing done when it was opened.
        number: of the newest generation, in this term.
        serial: how many ranks were asked for.
        target: replicas that there should be.
        awaited: seated ranks that have not come to ``begin`` yet, before the first generation.
        coming: ranks that were asked for and have not come to ``begin`` yet.
        parked: ranks that stand in ``begin`` and are no members: spares, and those that are still to join.
        leaving: members that are to leave, with the position at which they were told; None while they were not.
        tried: newest position at which ranks were let in.
        present: living members.
        unfinished: those that have not finished.
        fenced: ranks that were shut out and whose end is not confirmed.
        verdicts: the newest of those who watch.
        decision: how the last loss was answered, and why, in one line.
        room: replicas for which the cluster has room beside all ranks that were asked for.
        nodes: all that live, if the cluster can tell.
        watches: nodes on which ranks live or lived, and their sentinels.
        saved: by where it lies, the steps that the newest saved state holds.
        held: by where they lie, the steps of all saved states.
        stability: what the stability monitors say; None before they have said anything.
        changes: what is different from some step on, since everybody went back because of an alarm.
        alarmed: number of the newest change, and step, of the newest alarm that was answered.
        trust: by what is looked for, what checks have said of the states of the run.
        checks: those whose evidence comes in, by the step of their state.
        norms: how large what members add is, as of the newest check.
        uncovered: what the newest check could not look at, by name.
        rollback: set from when what the members hold cannot be trusted until all have gone back.
        undone: what everybody last went back from for that; records of older generations are void too.
        resume: what the run goes on from, if that is not the beginning.
        cadence: by what is saved, how often and why, where that is not configured.
        setbacks: how often everybody had to go back to what was saved.
        sources: where state was looked for when all were to go back, or began: one line each, what was taken last.
        failures: what is remembered of the failures of nodes.
        draining: nodes on which nothing is started any more.
        ask_after: when the next rank may be asked for: ranks that end before they are ready are not asked for at once.
        aborted: such ends in a row, with nothing computed.
        begun: by the newest positions, who was heard first of those that work there, and at what.
        poison: microbatches that failed on two ranks, by step.
        recorded: the records of all steps before this one are here.
        record: the newest of them.
        pace: (seconds, weight, model FLOPs) of the newest steps.
        warnings: what went wrong beside the training, one line each.
        metrics: final figures, where an earlier controller life has ended the run.
        standstill: set while nothing moves.
        rounds: how fast members are.
    """

    settings: Settings
    phase: Phase = Phase.STARTING
    started: float = 0.0
    store: tuple[str, int] | None = None
    ranks: Map[str, Rank] = field(default_factory=Map)
    world: World | None = None
    opened: Open | None = None
    anew: frozenset[str] = frozenset()
    number: int = 0
    serial: int = 0
    target: int = 0
    awaited: Names = NOBODY
    coming: Names = NOBODY
    parked: Names = NOBODY
    leaving: Map[str, Position | None] = field(default_factory=Map)
    tried: Position | None = None
    present: Names = NOBODY
    unfinished: Names = NOBODY
    fenced: Names = NOBODY
    adoption: Adoption | None = None
    recovery: Recovery | None = None
    recoveries: tuple[RecoveryRecord, ...] = ()
    verdicts: tuple[VerdictRecord, ...] = ()
    decision: str = ""
    room: int = 0
    nodes: tuple[Node, ...] = ()
    watches: Map[str, Watch] = field(default_factory=Map)
    saved: Mapping[str, int] = field(default_factory=dict)
    held: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    stability: Stability | None = None
    changes: Changes = ()
    alarmed: tuple[int, int] = (-1, -1)
    trust: Mapping[str, Trust] = field(default_factory=dict)
    checks: Map[int, OpenCheck] = field(default_factory=Map)
    norms: Norms = field(default_factory=Norms)
    uncovered: tuple[str, ...] = ()
    rollback: Rollback | None = None
    undone: Undone | None = None
    resume: Found | None = None
    cadence: Mapping[str, str] = field(default_factory=dict)
    setbacks: int = 0
    sources: tuple[str, ...] = ()
    failures: quarantine.Ledger = field(default_factory=quarantine.Ledger)
    draining: frozenset[str] = frozenset()
    ask_after: float = 0.0
    aborted: int = 0
    deathless: int = 0
    accusations: Mapping[str, int] = field(default_factory=dict)
    first_cause: str | None = None
    faults_fired: tuple[str, ...] = ()
    raised: tuple[Raised, ...] = ()
    begun: Mapping[Position, tuple[str, Work]] = field(default_factory=dict)
    poison: Mapping[int, frozenset[int]] = field(default_factory=dict)
    recorded: int = 0
    record: StepRecord | None = None
    pace: tuple[tuple[float, float, float | None], ...] = ()
    warnings: tuple[str, ...] = ()
    error: str | None = None
    traceback: str | None = None
    metrics: Mapping[str, object] = field(default_factory=dict)
    finishing: float = 0.0
    standstill: Standstill | None = None
    rounds: Rounds = field(default_factory=Rounds)

    def rank(self, incarnation: str, **fields: object) -> "State":
        """This state with one rank changed."""
        return changed(self, ranks=self.ranks.set(incarnation, changed(self.ranks[incarnation], **fields)))

    def heard(self, incarnation: str, now: float, **fields: object) -> Map[str, Rank]:
        """All ranks after a sign of life of one, which is under no suspicion any more, with what it told."""
        rank = self.ranks[incarnation]
        if rank.standing is Standing.SUSPECT:
            fields["standing"] = self.standing(rank)
        return self.ranks.set(incarnation, changed(rank, last_heard=now, **fields))

    def standing(self, rank: Rank) -> Standing:
        """What a rank is when it is not under suspicion."""
        if rank.finished is not None:
            return Standing.FINISHED
        if self.world is not None and self.world.member(rank.incarnation) is not None:
            return Standing.MEMBER
        return Standing.READY if rank.ready is not None else Standing.STARTING

    def lost(self, incarnation: str, **fields: object) -> "State":
        """This state with one rank changed, of which nothing is expected any more."""
        state = self.rank(incarnation, **fields)
        leaving = state.leaving.delete(incarnation) if incarnation in state.leaving else state.leaving
        return changed(
            state,
            awaited=without(state.awaited, incarnation),
            coming=without(state.coming, incarnation),
            parked=without(state.parked, incarnation),
            leaving=leaving,
            present=without(state.present, incarnation),
            unfinished=without(state.unfinished, incarnation),
            fenced=_fenced(state, incarnation),
            recovery=state.recovery and state.recovery.without(incarnation),
        )

    def is_member(self, incarnation: str) -> bool:
        """Whether it lives and belongs to the newest world."""
        return incarnation in self.present

    @property
    def living(self) -> tuple[Rank, ...]:
        """In the order in which they were asked for; the map's own order is another one in every process."""
        return tuple(rank for _, rank in sorted(self.ranks.items()) if rank.standing.living)

    @property
    def members(self) -> tuple[Rank, ...]:
        """Living ranks of the newest world, in the order of their seats."""
        if self.world is None:
            return ()
        return tuple(self.ranks[name] for name in self.world.names if name in self.present)


def _fenced(state: State, incarnation: str) -> Names:
    if state.ranks[incarnation].standing is Standing.FENCED:
        return state.fenced.set(incarnation, None)
    return without(state.fenced, incarnation)

"""The controller's whole memory, as immutable values."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from ...actors.messages import Finished, Raised, Ready, Report, Resumed, StepRecord
from ...conf.elastic import Timeouts
from ...policies.workload import WorkloadPolicy
from ...policies.world import Generation, Position, Seat, Work, World
from ..view import Phase, RecoveryRecord


@dataclass(frozen=True)
class Settings:
    """What does not change during a run.

    Attributes:
        run: its name.
        term: of this controller life.
        ranks: incarnations to start, in the order of their seats.
        minimum: fewest replicas that may train.
        workload: policy that gives microbatches to replicas.
        timeouts: all deadlines, in seconds.
        store_prefix: root of the store keys; the generation is appended.
        weight_unit: what the weights of losses count.
        skip_poison: whether a poison microbatch is left out; else it ends the run.
    """

    run: str
    term: int
    ranks: tuple[str, ...]
    minimum: int
    workload: WorkloadPolicy
    timeouts: Timeouts
    ranks_per_replica: int = 1
    store_prefix: str = ""
    weight_unit: str = "weight"
    skip_poison: bool = False


class Standing(StrEnum):
    """What a rank is to the run."""

    STARTING = "starting"
    READY = "ready"
    MEMBER = "member"
    SUSPECT = "suspect"
    FENCED = "fenced"
    FINISHED = "finished"
    GONE = "gone"

    @property
    def living(self) -> bool:
        return self not in (Standing.FENCED, Standing.GONE)


@dataclass(frozen=True)
class Rank:
    """What the controller knows of one rank.

    Attributes:
        computed: microbatches that it has computed, as last heard.
        held: oldest step whose record it keeps, or will keep, as last heard.
        suspected: when it became suspect; the probe's deadline counts from here.
        fenced: when it was fenced; the confirmation's deadline counts from here.
    """

    incarnation: str
    seat: Seat
    standing: Standing = Standing.STARTING
    node: str = ""
    pid: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    ready: Ready | None = None
    last_heard: float = 0.0
    position: Position = Position(0)
    stage: str = ""
    computed: int = 0
    held: int = 0
    suspected: float = 0.0
    fenced: float = 0.0
    cause: str = ""
    raised: Raised | None = None
    finished: Finished | None = None


@dataclass(frozen=True)
class Recovery:
    """The one recovery under way; new losses join it.

    Attributes:
        generation: that it prepares or has opened.
        guessed: True while ``cause`` is a failed collective and no death explains it yet.
        before: members when it began.
        started: when the first sign came.
        reports: by incarnation, of the living members of the old generation.
        opened: when the new generation was sent out, 0 while it is not.
        joined: members that have built the new group.
        resumed: members that have decided their first position in it.
        stamps: times at which the phases ended.
    """

    generation: Generation
    before: tuple[str, ...]
    cause: str
    started: float
    guessed: bool = False
    step: int = 0
    reports: Mapping[str, Report] = field(default_factory=dict)
    opened: float = 0.0
    lost: tuple[Seat, ...] = ()
    lost_microbatches: tuple[int, ...] = ()
    joined: frozenset[str] = frozenset()
    resumed: Mapping[str, Resumed] = field(default_factory=dict)
    stamps: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True)
class State:
    """Everything that the machine knows.

    Attributes:
        begun: by the newest positions, who was heard first of those that work there, and at what.
        poison: microbatches that failed on two ranks, by the first attempt at their position.
        recorded: the records of all steps before this one are here.
        record: the newest of them.
        pace: (seconds, weight, model FLOPs) of the newest steps.
        warnings: what went wrong beside the training, one line each.
    """

    settings: Settings
    phase: Phase = Phase.STARTING
    started: float = 0.0
    store: tuple[str, int] | None = None
    ranks: Mapping[str, Rank] = field(default_factory=dict)
    world: World | None = None
    number: int = 0
    recovery: Recovery | None = None
    recoveries: tuple[RecoveryRecord, ...] = ()
    deathless: int = 0
    accusations: Mapping[str, int] = field(default_factory=dict)
    first_cause: str | None = None
    faults_fired: tuple[str, ...] = ()
    raised: tuple[Raised, ...] = ()
    begun: Mapping[Position, tuple[str, Work]] = field(default_factory=dict)
    poison: Mapping[Position, frozenset[int]] = field(default_factory=dict)
    recorded: int = 0
    record: StepRecord | None = None
    pace: tuple[tuple[float, float, float | None], ...] = ()
    warnings: tuple[str, ...] = ()
    error: str | None = None
    traceback: str | None = None
    finishing: float = 0.0

    def rank(self, incarnation: str, **changes: object) -> "State":
        """This state with one rank changed."""
        changed = replace(self.ranks[incarnation], **changes)  # type: ignore[arg-type]
        return replace(self, ranks={**self.ranks, incarnation: changed})

    @property
    def living(self) -> tuple[Rank, ...]:
        return tuple(rank for rank in self.ranks.values() if rank.standing.living)

    @property
    def members(self) -> tuple[Rank, ...]:
        """Living ranks of the newest world."""
        if self.world is None:
            return ()
        held = (self.ranks[name] for name in self.world.incarnations)
        return tuple(rank for rank in held if rank.standing.living)

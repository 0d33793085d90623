"""What ranks and the controller say to each other. Control messages carry the generation that they speak of."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..monitors.progress import ProgressRecord
from ..monitors.reading import Reading
from ..monitors.spent import Spent
from ..policies.changes import Changes
from ..policies.world import Generation, Position, Seat, Work, World
from .evidence import Evidence
from .node.vault_messages import Copies, Offered, Withdraw
from .saving_messages import Cadence, Stored, Unreadable
from .stability_messages import StabilityTold

PROTOCOL = 1


@dataclass(frozen=True)
class StoreAddress:
    """Where the rendezvous store of a generation listens; it is hosted outside the ranks."""

    host: str
    port: int
    prefix: str


# --- from a rank to the controller


@dataclass(frozen=True)
class Hello:
    """First words of a rank: who it is and in what environment it computes."""

    incarnation: str
    pid: int
    node: str
    environment: Mapping[str, str] = field(default_factory=dict)
    seat: Seat | None = None


@dataclass(frozen=True)
class Serving:
    """To a controller that has taken over: the newest generation that this rank was told of, and where it stands.

    Attributes:
        abandoned: whether it promised to decide nothing in that generation.
        position: first undecided position.
        work: what is under way there, None if the rank has not come to it.
        poison: by step, indices that nobody may compute.
        anew: members that were to begin with nothing done when that generation was opened.
        joined: whether it has built the group of that generation, and need not meet a peer there for its state.
    """

    incarnation: str
    world: World
    abandoned: bool
    position: Position
    work: Work | None = None
    poison: Mapping[int, frozenset[int]] = field(default_factory=dict)
    anew: frozenset[str] = frozenset()
    joined: bool = True


@dataclass(frozen=True)
class Ready:
    """The rank stands in ``begin``: model built, waiting for its first generation.

    Attributes:
        signatures: SHA-256 by tensor name of the initial state; equal on all members or they may not train.
        steps: optimizer steps in all.
        facts: other facts that must be equal on all members (data set length, microbatch size, ...).
        state_bytes: of parameters, optimizer and all else that a rank in this place would be given.
    """

    incarnation: str
    signatures: Mapping[str, str]
    steps: int
    facts: Mapping[str, str] = field(default_factory=dict)
    state_bytes: int = 0


@dataclass(frozen=True)
class StepRecord:
    """The numbers of one committed step; every rank makes the same, but for ``seconds``, ``world`` and ``at``.

    Attributes:
        step: its number, from 0.
        loss: weighted mean over all microbatches.
        weight: sum of all weights.
        seconds: from the end of the step before, or from the start of training, to its own, on this rank.
        lr: learning rates as the optimizers used them, by name.
        numbers: what the training function recorded, by name.
        skipped: why the step was left out, None if it was not.
        microbatches: that it summed.
        world: ranks in the group when it ended.
        at: when it ended, in seconds since the epoch.
        flops: estimate of its model FLOPs, None if there is none.
        readings: of the stability monitors, if they were told with this step.
    """

    step: int
    loss: float
    weight: float
    seconds: float
    lr: Mapping[str, float]
    numbers: Mapping[str, float]
    skipped: str | None
    microbatches: int
    world: int
    at: float
    flops: float | None = None
    readings: tuple[Reading, ...] = ()


@dataclass(frozen=True)
class Heartbeat:
    """Sign of life from the control thread, with the progress of the training thread.

    Attributes:
        computed: microbatches computed so far, which took ``busy`` seconds.
        work: what is under way at ``position``, None if the rank has not come to it.
        held: oldest step whose record it keeps, or will keep; it keeps all later ones too.
        records: what the last ping asked for, in the order of steps.
        generation: in which it works, if it says so.
        progress: what its training thread is at.
        stability: what the stability monitors say; None if there are none.
        spent: what training steps have cost it so far.
    """

    incarnation: str
    position: Position
    stage: str
    computed: int = 0
    held: int = 0
    records: tuple[StepRecord, ...] = ()
    work: Work | None = None
    busy: float = 0.0
    generation: Generation | None = None
    progress: ProgressRecord | None = None
    stability: StabilityTold | None = None
    spent: Spent = Spent()


@dataclass(frozen=True)
class Report:
    """A promise and a fact sheet: the rank will decide nothing in ``abandons`` or before, and has this much.

    Attributes:
        abandons: the generation that it gave up.
        promised: it will be told of no generation older than this one either; None if nobody has asked for that.
        repeats: the replica whose indices these are, if it is that one's shadow.
        lacks: whether it still has not got the state that it was to take or to go back to.
        position: first undecided position.
        done: indices of that position whose gradients it holds.
        owed: indices that it still computes.
        work: what is to be decided at that position; None if the rank has not come to it.
        cause: why, if a collective failed; None when it was asked to report.
        accused: incarnation of the peer that the failed collective points at, if any.
    """

    incarnation: str
    abandons: Generation
    position: Position
    done: frozenset[int]
    owed: frozenset[int]
    cause: str | None = None
    accused: str | None = None
    work: Work | None = None
    repeats: int | None = None
    promised: Generation | None = None
    lacks: bool = False


@dataclass(frozen=True)
class Joined:
    """The rank has built the group of this generation, in ``seconds``."""

    incarnation: str
    generation: Generation
    seconds: float


@dataclass(frozen=True)
class Resumed:
    """First decision of the rank in this generation.

    Attributes:
        spans: (start, end) of the microbatches of that step on this rank's monotonic clock, in seconds.
        failed: when its last collective of an older generation failed, on the same clock; 0 if none did.
        reduced, decided: when the last reduction began, and when it was decided, on the same clock.
    """

    incarnation: str
    generation: Generation
    position: Position
    spans: tuple[tuple[float, float], ...]
    failed: float
    reduced: float
    decided: float


@dataclass(frozen=True)
class Raised:
    """The training function raised; the rank leaves.

    Attributes:
        microbatch: index in which it raised, None outside of one.
        samples: ids of the samples of that microbatch.
        signature: exception type and place, to tell whether ranks raise alike.
        error: one line.
        final: True if another rank would fail in the same way, so that giving the work away is pointless.
    """

    incarnation: str
    position: Position
    microbatch: int | None
    samples: tuple[int, ...]
    signature: str
    error: str
    traceback: str
    final: bool = False


@dataclass(frozen=True)
class Finished:
    """All steps are applied and the training function has returned.

    Attributes:
        generation: the newest that was opened to it when it said so; it says so again in every later one.
    """

    incarnation: str
    generation: Generation
    weights_sha256: str
    loss: float
    steps: int
    computed: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    state_sha256: str = ""


@dataclass(frozen=True)
class FaultFired:
    """A planned fault is about to hit this rank; ``evidence`` shows that the moment was the planned one."""

    incarnation: str
    fault: str
    evidence: str


FromRank = (
    Hello
    | Ready
    | Serving
    | Heartbeat
    | Report
    | Joined
    | Resumed
    | Raised
    | Finished
    | FaultFired
    | Stored
    | Cadence
    | Unreadable
    | Offered
    | Evidence
)


# --- from the controller to a rank


@dataclass(frozen=True)
class Ping:
    """Say that you live.

    Attributes:
        recorded: the controller has the records of all steps before this one.
        wanted: whether it wants the others from this rank.
        kept: those before this one are written down as well, and need not be kept; None if all that it has are.
    """

    recorded: int = 0
    wanted: bool = False
    kept: int | None = None


@dataclass(frozen=True)
class Prepare:
    """Decide nothing in a generation older than this one; leave its group, and report."""

    generation: Generation


@dataclass(frozen=True)
class Hold:
    """Nobody can train now, because of ``reason``: a new generation may take ``seconds`` from here on to come.

    Attributes:
        store: host and port of the store in which its members will meet; None if it is not known yet.
    """

    seconds: float
    reason: str
    store: tuple[str, int] | None = None


@dataclass(frozen=True)
class Restore:
    """Every member goes back to the state after ``step`` steps, which lies in ``source``.

    Attributes:
        copies: where the parts of it are, if they are in vaults.
        times: how often everybody had to go back, this time included; a run that is resumed has not.
        changes: what is different from some step on, beside what the state says itself.
    """

    source: str
    step: int
    copies: tuple[Copies, ...] = ()
    times: int = 0
    changes: Changes = ()


@dataclass(frozen=True)
class Open:
    """A new generation begins.

    Attributes:
        world: its members; ``world.generation`` names it.
        position: first undecided position; a member that stands one before it holds its sum and decides it alike.
        indices: by incarnation, all indices of ``position`` that the member computes.
        store: where its members meet.
        work: what is to be decided at ``position``; None if nobody has come to it: then there are no indices, and
            each member plans for itself when it does.
        poison: by step, indices that nobody may compute: they contribute nothing.
        shadows: members that compute what another one computes, with whose; what they add to a sum is nothing.
        dropped: indices that nobody contributes; only a policy that is not exact drops any.
        speeds: microbatches per second by replica, for plans that go by them.
        leaving: members that begin no work any more, and will be let go when they have none.
        sources: by members that take up ``position`` with nothing done, who has the state before it, maybe themselves.
        restore: set if the state is older than what was decided.
    """

    world: World
    position: Position
    indices: Mapping[str, tuple[int, ...]]
    store: StoreAddress
    work: Work | None = None
    poison: Mapping[int, frozenset[int]] = field(default_factory=dict)
    shadows: Mapping[str, str] = field(default_factory=dict)
    dropped: frozenset[int] = frozenset()
    speeds: Mapping[int, float] = field(default_factory=dict)
    leaving: frozenset[str] = frozenset()
    sources: Mapping[str, str] = field(default_factory=dict)
    restore: Restore | None = None


@dataclass(frozen=True)
class Fenced:
    """You are no longer part of this run: end at once."""

    reason: str


@dataclass(frozen=True)
class Release:
    """The run is over: leave."""


ToRank = Ping | Prepare | Open | Hold | Withdraw | Fenced | Release

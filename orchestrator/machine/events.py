"""What the machine can hear and what it can ask for. Small frozen values; nothing else crosses its border."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...actors.messages import FromRank, StepRecord, ToRank
from ...actors.node.sentinel_messages import FromSentinel, ToSentinel
from ...policies.placement import Node
from ...policies.retention import Undone
from ...policies.world import Generation, Seat
from .past import Past

# --- events


@dataclass(frozen=True)
class Started:
    """The run begins."""


@dataclass(frozen=True)
class TookOver:
    """The run goes on under a new controller.

    Attributes:
        past: what the journals of earlier ones say.
        living: ranks that the cluster knows to live; None if it knows only of ends.
        at: in seconds since the epoch.
    """

    past: Past
    living: frozenset[str] | None
    at: float


@dataclass(frozen=True)
class Heard:
    """A message of a rank or a sentinel. Whose it is is said by the connection, not by the message."""

    incarnation: str
    message: FromRank | FromSentinel


@dataclass(frozen=True)
class Reports:
    """Reports that were heard one right after the other; they mean what they would mean one by one."""

    heard: tuple[Heard, ...]


@dataclass(frozen=True)
class Ended:
    """The process of a rank or a sentinel is gone, or its connection broke; ``cause`` is one line."""

    incarnation: str
    cause: str


@dataclass(frozen=True)
class Refused:
    """A connection was refused, for ``reason``: a stranger, or another version of the protocol."""

    reason: str


@dataclass(frozen=True)
class StoreOpened:
    """The rendezvous store listens."""

    host: str
    port: int


@dataclass(frozen=True)
class Tick:
    """Time went by; ``asleep`` is how long the controller itself did not run, in seconds."""

    asleep: float = 0.0


@dataclass(frozen=True)
class StopRequested:
    """Somebody outside wants the run to end."""

    reason: str


@dataclass(frozen=True)
class Warned:
    """Something beside the training went wrong, and the run goes on; ``text`` is one line."""

    text: str


@dataclass(frozen=True)
class NodeLost:
    """A node is gone or out of reach, with all that lived there; ``cause`` is one line."""

    node: str
    cause: str


@dataclass(frozen=True)
class NodeDraining:
    """A node is to be left; ``reason`` is one line."""

    node: str
    reason: str


@dataclass(frozen=True)
class Resize:
    """Somebody outside wants so many replicas from now on."""

    replicas: int


@dataclass(frozen=True)
class Room:
    """The cluster has room for so many replicas beside all ranks that were asked for.

    Attributes:
        nodes: all that live, with their failure domains and how many ranks each has room for, if that is known.
    """

    replicas: int
    nodes: tuple[Node, ...] = ()


@dataclass(frozen=True)
class Saved:
    """The state after ``step`` steps lies in ``source`` (vault or storage), whole.

    Attributes:
        kept: all that lie there; None if it does not say, and what was known to lie there still does.
        generation: in which it was saved, if this may come later than that everybody went back; else None.
    """

    source: str
    step: int
    kept: tuple[int, ...] | None = None
    generation: Generation | None = None


@dataclass(frozen=True)
class Lost:
    """What was saved of ``step`` in ``source`` cannot be read, for ``reason``.

    Attributes:
        older: the newest that lies there besides; None if there is none.
        kept: all that lie there; None if it does not say.
    """

    source: str
    step: int
    older: int | None
    reason: str
    kept: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Found:
    """Before the first generation: saved states of an earlier life of this run were looked for.

    Attributes:
        source: where.
        step: optimizer steps that the newest whole one has taken; 0 if there is none.
        identity: facts that must be equal for the run to go on from it.
        skipped: why newer ones were not taken, one line each.
        refused: why the run must not begin at all; empty if it may.
    """

    source: str
    step: int
    identity: Mapping[str, str] = field(default_factory=dict)
    skipped: tuple[str, ...] = ()
    refused: str = ""


Event = (
    Started
    | TookOver
    | Heard
    | Reports
    | Ended
    | Refused
    | StoreOpened
    | Tick
    | StopRequested
    | Warned
    | NodeLost
    | NodeDraining
    | Resize
    | Room
    | Saved
    | Found
    | Lost
)


# --- actions


@dataclass(frozen=True)
class StartRank:
    """Ask for a rank; without a seat it is parked until it is given one.

    Attributes:
        avoid: nodes that it must not be on, if there are others.
        node: where it would be best; None if any other will do.
    """

    incarnation: str
    seat: Seat | None
    avoid: frozenset[str] = frozenset()
    node: str | None = None


@dataclass(frozen=True)
class KillRank:
    incarnation: str
    reason: str


@dataclass(frozen=True)
class StartSentinel:
    """Ask for a sentinel on this node."""

    incarnation: str
    node: str


@dataclass(frozen=True)
class StopSentinel:
    """A sentinel is not needed any more: see to it that it ends, and its name is free."""

    incarnation: str


@dataclass(frozen=True)
class Send:
    incarnation: str
    message: ToRank | ToSentinel


@dataclass(frozen=True)
class Record:
    """One line for the journal: what happened, with its facts."""

    what: str
    generation: Generation | None = None
    facts: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Publish:
    """Records of steps, each step once and in order, for all who keep or show numbers."""

    records: tuple[StepRecord, ...]


@dataclass(frozen=True)
class Undo:
    """See to it that nobody goes on from these saved states."""

    undone: Undone


@dataclass(frozen=True)
class EndRun:
    """The run is over: release what is left and report."""


Action = StartRank | KillRank | StartSentinel | StopSentinel | Send | Record | Publish | Undo | EndRun

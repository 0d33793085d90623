"""What the machine can hear and what it can ask for. Small frozen values; nothing else crosses its border."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...actors.messages import FromRank, StepRecord, ToRank
from ...policies.world import Generation, Seat

# --- events


@dataclass(frozen=True)
class Started:
    """The run begins."""


@dataclass(frozen=True)
class Heard:
    """A message of a rank. Which rank is said by the connection, not by the message."""

    incarnation: str
    message: FromRank


@dataclass(frozen=True)
class Ended:
    """A rank's process is gone, or its connection broke; ``cause`` is one line."""

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


Event = Started | Heard | Ended | Refused | StoreOpened | Tick | StopRequested | Warned


# --- actions


@dataclass(frozen=True)
class StartRank:
    incarnation: str
    seat: Seat


@dataclass(frozen=True)
class KillRank:
    incarnation: str
    reason: str


@dataclass(frozen=True)
class Send:
    incarnation: str
    message: ToRank


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
class EndRun:
    """The run is over: release what is left and report."""


Action = StartRank | KillRank | Send | Record | Publish | EndRun

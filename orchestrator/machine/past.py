"""What earlier controller lives have left, folded from their journals. Pure: entries in, a value out.

The journal is no more than a help: what is decided rests on what the ranks say. What only the journal knows is how the
run came to be where it is: its recoveries, first cause, warnings, and what its microbatches have raised.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from ...actors.messages import Raised
from ...monitors.certification import Trust
from ...policies.changes import Change, Changes
from ...policies.quarantine import NodeRecord
from ...policies.retention import Undone
from ...policies.world import Generation, Position, Seat
from ..view import RecoveryRecord, VerdictRecord
from .distrust import Rollback

# So many of the newest verdicts are kept in memory.
KEPT = 100


@dataclass(frozen=True)
class KnownRank:
    """A rank that an earlier life has asked for.

    Attributes:
        seen: when it said that it is up, in seconds since the epoch; 0 if it did not.
        gone: whether it has ended, was shut out or let go.
    """

    incarnation: str
    seat: Seat | None = None
    node: str = ""
    pid: int = 0
    seen: float = 0.0
    gone: bool = False


@dataclass(frozen=True)
class Opened:
    """What was lost before a generation that a recovery has opened; as in ``RecoveryRecord``."""

    step: int = 0
    lost: tuple[Seat, ...] = ()
    lost_microbatches: tuple[int, ...] = ()
    decision: str = ""


@dataclass(frozen=True)
class Unfinished:
    """A recovery that was under way when the journal ended.

    Attributes:
        before: ranks in the world when it began.
        began: in seconds since the epoch.
        opened: generations that it has opened, as ``term.number``. Ranks may never have heard of the newest ones.
    """

    cause: str
    before: int
    began: float
    opened: Mapping[str, Opened] = field(default_factory=dict)


@dataclass(frozen=True)
class Ending:
    """How the run has ended; as in ``RunState``."""

    phase: str
    error: str | None
    traceback: str | None
    metrics: Mapping[str, object]


@dataclass(frozen=True)
class Past:
    """Everything that is known of earlier lives; nothing, if their journals are lost.

    Attributes:
        generation: the newest one that was heard of, as ``term.number``; empty if none was.
        guessed: whether no death explains the cause of the recovery that was under way.
        target: replicas that there should be; None if nobody has changed that.
        failures: what is remembered of the failures of nodes, with times in seconds since the epoch.
    """

    ranks: Mapping[str, KnownRank] = field(default_factory=dict)
    generation: str = ""
    target: int | None = None
    first_cause: str | None = None
    decision: str = ""
    recoveries: tuple[RecoveryRecord, ...] = ()
    verdicts: tuple[VerdictRecord, ...] = ()
    faults_fired: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    raised: tuple[Raised, ...] = ()
    poison: Mapping[int, frozenset[int]] = field(default_factory=dict)
    leaving: Mapping[str, Position | None] = field(default_factory=dict)
    draining: frozenset[str] = frozenset()
    failures: Mapping[str, NodeRecord] = field(default_factory=dict)
    saved: Mapping[str, int] = field(default_factory=dict)
    cadence: Mapping[str, str] = field(default_factory=dict)
    setbacks: int = 0
    sources: tuple[str, ...] = ()
    changes: Changes = ()
    alarmed: tuple[int, int] = (-1, -1)
    trust: Mapping[str, Trust] = field(default_factory=dict)
    rollback: Rollback | None = None
    undone: Undone | None = None
    unfinished: Unfinished | None = None
    guessed: bool = False
    ending: Ending | None = None


def fold(entries: Iterable[Mapping[str, Any]]) -> Past:
    """What the entries of all earlier lives say, oldest first; entries that it does not know say nothing."""
    past = Past()
    ranks: dict[str, KnownRank] = {}
    for entry in entries:
        if entry.get("generation"):
            past = replace(past, generation=entry["generation"])
        match entry.get("what"):
            case "memory":
                read: dict[str, Any] = {name: READ[name](entry[name], past) for name in READ if name in entry}
                past = replace(past, **read)
                # A line is written when it happens.
                fell = {node: NodeRecord(at=entry["time"], **held) for node, held in entry.get("failures", {}).items()}
                past = replace(past, failures={**past.failures, **fell})
            case "verdict":
                past = replace(past, verdicts=(*past.verdicts, _verdict(entry))[-KEPT:])
            case "taken over" if not entry.get("ended"):
                # It went on: whatever an earlier life decides afterwards is decided too late.
                past = replace(past, ending=None)
            case "recovering":
                first = Unfinished(entry["cause"], entry["before"], entry["time"])
                past = replace(past, unfinished=past.unfinished or first)
            case "opened" if "lost" not in entry:
                # The first one of all: nothing could be lost before.
                past = replace(past, unfinished=None)
            case "opened" if past.unfinished:
                opened = Opened(
                    entry["step"],
                    tuple(map(_seat, entry["lost"])),
                    tuple(entry["lost_microbatches"]),
                    entry["reason"],
                )
                held = {**past.unfinished.opened, entry["generation"]: opened}
                past = replace(past, unfinished=replace(past.unfinished, opened=held))
            case "recovered":
                past = replace(past, unfinished=None)
            case "rank asked for":
                ranks[entry["incarnation"]] = KnownRank(entry["incarnation"], _perhaps(entry["seat"]))
            case "rank up":
                name, seat = entry["incarnation"], _perhaps(entry["seat"])
                ranks[name] = KnownRank(name, seat, entry["node"], entry["pid"], entry["time"])
            case "rank gone" | "fenced" | "left" | "dismissed":
                name = entry["incarnation"]
                ranks[name] = replace(ranks.get(name, KnownRank(name)), gone=True)
    return replace(past, ranks=ranks)


def _perhaps(text: str | None) -> Seat | None:
    return None if text is None else _seat(text)


def _seat(text: str) -> Seat:
    replica, _, coordinate = text.partition(".")
    return Seat(int(replica), int(coordinate))


def _recovery(said: Mapping[str, Any]) -> RecoveryRecord:
    lost = {"lost": tuple(said["lost"]), "lost_microbatches": tuple(said["lost_microbatches"])}
    return RecoveryRecord(**{**said, **lost})


def _verdict(said: Mapping[str, Any]) -> VerdictRecord:
    own = {item.name: said[item.name] for item in fields(VerdictRecord)}
    return VerdictRecord(**{**own, "who": tuple(said["who"])})


def _rollback(said: Mapping[str, Any]) -> Rollback:
    opened = said["opened"] and Generation.read(said["opened"])
    return Rollback(**{**said, "opened": opened})


def _undone(said: Mapping[str, Any]) -> Undone:
    return Undone(said["step"], Generation.read(said["generation"]))


def _raised(said: Mapping[str, Any]) -> Raised:
    return Raised(**{**said, "position": Position(**said["position"]), "samples": tuple(said["samples"])})


def _untimed(record: NodeRecord) -> dict[str, object]:
    """The time is that of the line."""
    return {name: value for name, value in asdict(record).items() if name != "at"}


def _place(text: str) -> Position:
    return Position(*map(int, text.split("/")))


def _text(place: Position) -> str:
    return f"{place.step}/{place.unit}/{place.attempt}"


# How a later life reads what an earlier one has written: lists hold only what was new.
READ: Mapping[str, Callable[[Any, Past], object]] = {
    "target": lambda said, _: said,
    "first_cause": lambda said, _: said,
    "decision": lambda said, _: said,
    "recoveries": lambda said, past: (*past.recoveries, *map(_recovery, said)),
    "faults_fired": lambda said, past: (*past.faults_fired, *said),
    "warnings": lambda said, past: (*past.warnings, *said),
    "raised": lambda said, past: (*past.raised, *map(_raised, said)),
    "poison": lambda said, _: {int(step): frozenset(indices) for step, indices in said.items()},
    "leaving": lambda said, _: {name: place and _place(place) for name, place in said.items()},
    "draining": lambda said, _: frozenset(said),
    "saved": lambda said, _: dict(said),
    "cadence": lambda said, _: dict(said),
    "setbacks": lambda said, _: said,
    "sources": lambda said, _: tuple(said),
    "changes": lambda said, _: tuple(Change(**held) for held in said),
    "alarmed": lambda said, _: tuple(said),
    "trust": lambda said, _: {kind: Trust(**held) for kind, held in said.items()},
    "rollback": lambda said, _: said and _rollback(said),
    "undone": lambda said, _: said and _undone(said),
    "guessed": lambda said, _: said,
    "ending": lambda said, _: Ending(**said),
}
WRITE: Mapping[str, Callable[[Any], object]] = {
    "recoveries": lambda new: [asdict(record) for record in new],
    "raised": lambda new: [asdict(message) for message in new],
    "poison": lambda held: {str(step): sorted(indices) for step, indices in held.items()},
    "leaving": lambda held: {name: place and _text(place) for name, place in held.items()},
    "draining": sorted,
    "failures": lambda new: {node: _untimed(held) for node, held in new.items()},
    "saved": dict,
    "cadence": dict,
    "ending": asdict,
    "changes": lambda held: [asdict(change) for change in held],
    "trust": lambda held: {kind: asdict(trust) for kind, trust in held.items()},
    "rollback": lambda held: held and {**asdict(held), "opened": held.opened and str(held.opened)},
    "undone": lambda held: held and {"step": held.step, "generation": str(held.generation)},
}

"""Who was named, beside who was hit. Pure: from a run's journal to an outcome for each case."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from everstep.benchmarks.localisation.plan import Family, Kind, Launch


@dataclass(frozen=True)
class Outcome:
    """What came of one case.

    Attributes:
        launch, place: which case of which launch it is.
        interval: steps from one check of the numbers to the next.
        cluster: "local" or "ray".
        fired: whether it has happened.
        named: ranks that were named while it was there.
        hit: the rank that was hit; empty if none was.
        seconds: from the hit until the right one was named; for a hang, from the moment it could be called one.
        said: of whoever was named first.
    """

    launch: str
    place: int
    family: Family
    kind: Kind
    interval: int
    cluster: str
    recurs: bool
    bit: int
    percent: int
    fired: bool
    hit: str = ""
    named: tuple[str, ...] = ()
    seconds: float | None = None
    said: str = ""

    @property
    def localised(self) -> bool:
        """Whether the rank that was hit is named, and nobody else."""
        return self.fired and self.named == (self.hit,)

    @property
    def right(self) -> bool:
        """Whether the verdict was as it should be: where nothing goes wrong, nobody is named."""
        return self.localised if self.kind is not Kind.HEALTHY else self.fired and not self.named

    @property
    def false_alarms(self) -> int:
        """Ranks that are named and were not hit."""
        return len(set(self.named) - {self.hit})


@dataclass(frozen=True)
class Naming:
    """Somebody was named."""

    time: float
    step: int
    rank: str
    kind: str
    reason: str


def judged(
    launch: Launch,
    hits: Sequence[Mapping[str, Any] | None],
    journal: Sequence[Mapping[str, Any]],
    opened: Sequence[float],
    limits: Mapping[Kind, float],
    cluster: str,
) -> list[Outcome]:
    """An outcome for each case.

    Args:
        hits: by case, what the rank that was hit has left.
        opened: by case, when all were let go into it, in seconds since the epoch.
        limits: by kind of hang, after how many seconds it may be called one.
    """
    namings = list(namings_of(journal))
    found = []
    for place, case in enumerate(launch.cases):
        hit = hits[place]
        here = [one for one in namings if _belongs(one, launch, place, opened)]
        right = f"rank {case.replica}.0" if hit is not None and case.kind is not Kind.HEALTHY else ""
        ranks = tuple(dict.fromkeys(one.rank for one in here))
        first = next((one for one in here if one.rank == right), None)
        seconds = None
        if first is not None and hit is not None:
            seconds = first.time - hit["time"] - limits.get(case.kind, 0.0)
        found.append(
            Outcome(
                launch.name,
                place,
                launch.family,
                case.kind,
                launch.interval,
                cluster,
                case.recurs,
                case.bit,
                case.percent,
                fired=hit is not None,
                hit=right,
                named=ranks,
                seconds=seconds,
                said=here[0].reason if here else "",
            )
        )
    return found


def namings_of(journal: Sequence[Mapping[str, Any]]) -> Iterable[Naming]:
    """All who were named for anything, and shut out for anything, in the order of time."""
    shut_out = {entry["incarnation"]: entry["rank"] for entry in journal if entry.get("what") == "fenced"}
    for entry in journal:
        match entry.get("what"):
            case "suspected" if entry["rank"] in shut_out:
                # It did not answer, so it was named from here on.
                said = f"silent for {entry['silent_s']:.1f} s"
                yield Naming(entry["time"], -1, shut_out[entry["rank"]], "hang", said)
            case "standstill":
                for rank in entry["ranks"]:
                    yield Naming(entry["time"], -1, rank, "hang", entry["reason"])
            case "fenced":
                yield Naming(entry["time"], -1, entry["rank"], "hang", entry["reason"])
            case "verdict":
                for rank in entry["who"]:
                    yield Naming(entry["time"], entry["step"], rank, entry["kind"], entry["reason"])


def _belongs(naming: Naming, launch: Launch, place: int, opened: Sequence[float]) -> bool:
    """Whether it was said in the time of a case; about numbers, of a state in the steps of a case."""
    if launch.family is Family.NUMERIC and naming.kind == "corruption":
        case = launch.cases[place]
        following = launch.cases[place + 1].step if place + 1 < len(launch.cases) else inf
        return (case.step <= naming.step or not place) and naming.step < following
    end = opened[place + 1] if place + 1 < len(opened) else inf
    return (not place or opened[place] <= naming.time) and naming.time < end

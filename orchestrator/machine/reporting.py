"""Reports of a large world, which come all at once: what they change is changed once, and they are read once."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from ...actors.messages import Report
from ...policies.values import changed
from ...policies.world import Position, Work, World
from .events import Heard
from .plausible import impossible
from .state import NOBODY, Names, Rank, Standing, State

_TRUSTED = (Standing.MEMBER, Standing.FINISHED)


@dataclass(frozen=True)
class Alike:
    """Ranks that stand at the same place.

    Attributes:
        position: first undecided position.
        work: what is to be decided there; None if they have not come to it.
        lacks: whether they have not got the state that they were to take.
        names: of the ranks, in the order of their seats.
    """

    position: Position
    work: Work | None
    lacks: bool
    names: Sequence[str]


def fold(state: State, heard: Sequence[Heard], start: int, now: float) -> tuple[State, int]:
    """Take in awaited reports, from ``start`` on, up to the first that means anything besides.

    Returns:
        How many; each of them has changed what it would have changed alone, if nothing is planned in between.
    """
    recovery, world = state.recovery, state.world
    if recovery is None or recovery.opened or world is None or state.adoption is not None:
        return state, 0
    size, silent = state.settings.ranks_per_replica, recovery.silent
    # Numbers are compared much faster than the values that they make up.
    term, number = world.generation.term, world.generation.number
    ranks = state.ranks
    taken: dict[str, Rank] = {}
    accused: Counter[str] = Counter(state.accusations)
    for one in islice(heard, start, None):
        name, message = one.incarnation, one.message
        if not isinstance(message, Report) or name not in silent or name in taken:
            break
        rank, abandons = ranks[name], message.abandons
        known = abandons.number == number and abandons.term == term and rank.standing in _TRUSTED
        if not known or impossible(message, size):
            break
        if message.accused is not None and message != rank.report:
            accused[message.accused] += 1
        taken[name] = changed(rank, last_heard=now, report=message, position=message.position)
    if not taken:
        return state, 0
    recovery = changed(recovery, silent=_but(silent, taken))
    return changed(state, ranks=state.ranks.update(taken), recovery=recovery, accusations=dict(accused)), len(taken)


def reported(state: State, world: World) -> dict[str, Report]:
    """What living members of a world have said when they gave it up, in the order of their seats."""
    ranks, term, number = state.ranks, world.generation.term, world.generation.number
    found: dict[str, Report] = {}
    for name in world.names:
        rank = ranks[name]
        report = rank.report
        said = report is not None and report.abandons.number == number and report.abandons.term == term
        if report is not None and said and rank.standing.living:
            found[name] = report
    return found


def alike(reports: Mapping[str, Report]) -> tuple[Alike, ...]:
    """The ranks that have reported, by where they stand; those of the lowest seat come first."""
    groups: dict[tuple[object, ...], list[str]] = {}
    for name, held in reports.items():
        place, work = held.position, held.work
        task = None if work is None else (work.kind, work.microbatches)
        groups.setdefault((place.step, place.unit, place.attempt, task, held.lacks), []).append(name)
    firsts = ((reports[there[0]], there) for there in groups.values())
    return tuple(Alike(held.position, held.work, held.lacks, there) for held, there in firsts)


def _but(held: Names, taken: Collection[str]) -> Names:
    """The others of a set, of which all of these are."""
    if len(taken) == len(held):
        return NOBODY
    left = held.mutate()
    for name in taken:
        del left[name]
    return left.finish()

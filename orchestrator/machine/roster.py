"""Who sits where in the next world. Pure: what is left of the old one in, members and sources of state out."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, cycle

from ...policies.world import Member, Seat, World


@dataclass(frozen=True)
class Parked:
    """A rank without a seat."""

    incarnation: str
    node: str


@dataclass(frozen=True)
class Left:
    """What is left of a world.

    Attributes:
        size: R.
        whole: by id, the members of replicas that are whole.
        broken: by id, the living ranks of replicas that lost others.
        gone: ids of replicas of which nobody lives.
    """

    size: int
    whole: Mapping[int, tuple[Member, ...]]
    broken: Mapping[int, tuple[Member, ...]]
    gone: tuple[int, ...]

    @property
    def gaps(self) -> list[tuple[int, tuple[int, ...]]]:
        """Replicas that are not whole with the coordinates that they lack, fewest first."""
        held = {replica: {member.seat.coordinate for member in there} for replica, there in self.broken.items()}
        lacking = [(replica, self._all_but(have)) for replica, have in sorted(held.items())]
        return sorted(lacking, key=lambda gap: (len(gap[1]), gap[1])) + [
            (each, self._all_but(())) for each in self.gone
        ]

    def _all_but(self, held: Collection[int]) -> tuple[int, ...]:
        return tuple(place for place in range(self.size) if place not in held)


@dataclass(frozen=True)
class Roster:
    """The next world.

    Attributes:
        members: in the order of their seats.
        sources: those of them that take up the position anew, and whose state they take; their own, if they have it.
    """

    members: tuple[Member, ...]
    sources: Mapping[str, str]


def left_of(world: World, living: Collection[str]) -> Left:
    """What is left of ``world`` when only these live."""
    hit = {member.seat.replica for name, member in world.by_name.items() if name not in living}
    whole = {replica: group for replica, group in world.groups.items() if replica not in hit}
    left = {
        replica: tuple(member for member in world.groups[replica] if member.incarnation in living)
        for replica in sorted(hit)
    }
    broken = {replica: there for replica, there in left.items() if there}
    return Left(world.ranks_per_replica, whole, broken, tuple(replica for replica in left if replica not in broken))


def survivors(left: Left) -> Roster:
    """Only the replicas that are whole."""
    return Roster(_seated(left.whole), {})


def completed(left: Left, replicas: int, spares: Sequence[Parked], *, orphans: bool) -> Roster:
    """As many replicas as are named made whole, those first that lack least.

    Whoever keeps a coordinate keeps its state. All ranks of a completed replica take up the position anew, since what
    the lost ones held of its sums is gone.

    Args:
        left: of the old world.
        replicas: to complete; there must be enough ranks for them.
        spares: parked ranks, in the order in which they are taken.
        orphans: whether living ranks of the other broken replicas are taken as well, before spares are.
    """
    gaps = left.gaps
    # Where there are to be more than there were, the lowest ids that are free are taken.
    unused = (each for each in count() if each not in {*left.whole, *dict(gaps)})
    gaps += [(next(unused), tuple(range(left.size))) for _ in range(replicas - len(gaps))]
    kept, rest = dict(gaps[:replicas]), [replica for replica, _ in gaps[replicas:]]
    idle = [member for replica in rest for member in left.broken.get(replica, ())]
    takers = [Seat(replica, place) for replica, lacking in sorted(kept.items()) for place in lacking]
    found: dict[Seat, Member | Parked] = {}
    if orphans:
        for seat in takers:
            match = next((member for member in idle if member.seat.coordinate == seat.coordinate), None)
            if match is not None:
                idle.remove(match)
                found[seat] = match
    pool: list[Member | Parked] = [*idle, *spares] if orphans else [*spares]
    for seat in takers:
        if seat not in found:
            found[seat] = pool.pop(0)
    holders = _holders(left)
    sources: dict[str, str] = {}
    new: list[Member] = []
    for seat, member in found.items():
        new.append(Member(member.incarnation, seat, member.node))
        # Where nobody holds the state, it is restored.
        holder = member if member in holders[seat.coordinate] else next(holders[seat.coordinate].turns, member)
        sources[member.incarnation] = holder.incarnation
    for replica in kept:
        for member in left.broken.get(replica, ()):
            new.append(member)
            sources[member.incarnation] = member.incarnation
    members = sorted((*_seated(left.whole), *new), key=lambda member: member.seat)
    return Roster(tuple(members), sources)


def joined(roster: Roster, newcomers: Sequence[Parked], size: int) -> Roster:
    """The same with further replicas out of parked ranks, under the lowest ids that are free."""
    taken = {member.seat.replica for member in roster.members}
    free = (replica for replica in count() if replica not in taken)
    places = (Seat(replica, place) for replica in free for place in range(size))
    holders = {place: cycle(_at(roster.members, place)) for place in range(size)}
    new = [Member(one.incarnation, seat, one.node) for one, seat in zip(newcomers, places, strict=False)]
    sources = {one.incarnation: next(holders[one.seat.coordinate]).incarnation for one in new}
    members = sorted((*roster.members, *new), key=lambda member: member.seat)
    return Roster(tuple(members), {**roster.sources, **sources})


def anew(roster: Roster) -> Roster:
    """The same, and everybody forgets what it has done."""
    own = {member.incarnation: member.incarnation for member in roster.members}
    return Roster(roster.members, {**own, **roster.sources})


def restored(roster: Roster) -> Roster:
    """The same, and nobody takes state from another one."""
    return Roster(roster.members, {member.incarnation: member.incarnation for member in roster.members})


class _Holders:
    """Ranks that hold the state of one coordinate, whole replicas first; they are asked in turn."""

    def __init__(self, members: Sequence[Member]) -> None:
        self._names = {member.incarnation for member in members}
        self.turns: Iterator[Member] = cycle(members)

    def __contains__(self, member: Member | Parked) -> bool:
        return member.incarnation in self._names


def _holders(left: Left) -> dict[int, _Holders]:
    everybody = (*_seated(left.whole), *_seated(left.broken))
    return {place: _Holders(_at(everybody, place)) for place in range(left.size)}


def _at(members: Sequence[Member], coordinate: int) -> list[Member]:
    return [member for member in members if member.seat.coordinate == coordinate]


def _seated(replicas: Mapping[int, tuple[Member, ...]]) -> tuple[Member, ...]:
    return tuple(member for _, there in sorted(replicas.items()) for member in there)

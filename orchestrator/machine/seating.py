"""Who sits where before the first generation: nobody has anything to lose yet, so any rank can take any seat."""

from collections.abc import Iterable

from ...policies.values import changed
from ...policies.world import Member, Seat
from .state import Rank, State, without


def reseated(state: State) -> State:
    """The seats of ranks that are gone, given to ranks without one, and then to ranks of the emptiest replicas."""
    size = state.settings.ranks_per_replica
    held = {rank.seat: rank for rank in state.living if rank.seat is not None}
    spare = [rank for rank in state.living if rank.seat is None]
    # Whoever is ready already is taken first.
    spare.sort(key=lambda rank: rank.ready is None)
    missing = {
        replica: [seat for seat in (Seat(replica, place) for place in range(size)) if seat not in held]
        for replica in range(state.settings.replicas)
    }
    broken = sorted((len(seats), replica) for replica, seats in missing.items() if seats)
    kept = [replica for _, replica in broken]
    while kept:
        replica = kept.pop(0)
        for seat in missing[replica]:
            donors = [held[other] for each in reversed(kept) for other in _seats(each, size) if other in held]
            taken = [*spare, *donors][:1]
            if not taken:
                return state
            if taken[0].seat is None:
                spare.pop(0)
            else:
                held.pop(taken[0].seat)
            state = state.rank(taken[0].incarnation, seat=seat)
            state = changed(state, parked=without(state.parked, taken[0].incarnation))
            if taken[0].ready is None:
                state = changed(state, awaited=state.awaited.set(taken[0].incarnation, None))
    return state


def whole(ranks: Iterable[Rank], size: int) -> tuple[Member, ...]:
    """The members of replicas that are whole, in the order of their seats."""
    seated = sorted((rank.seat, rank) for rank in ranks if rank.seat is not None)
    held: dict[int, list[Member]] = {}
    for seat, rank in seated:
        held.setdefault(seat.replica, []).append(Member(rank.incarnation, seat, rank.node))
    places = list(range(size))
    full = (group for group in held.values() if [member.seat.coordinate for member in group] == places)
    return tuple(member for group in full for member in group)


def _seats(replica: int, size: int) -> list[Seat]:
    return [Seat(replica, place) for place in range(size)]

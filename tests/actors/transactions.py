"""Transactions of one rank among three, moved on in one line each."""

from collections.abc import Sequence
from typing import Any

from everstep.actors.messages import Open, Restore, StoreAddress
from everstep.actors.rank.transaction import Transaction
from everstep.policies.world import Generation, Member, Position, Seat, Work, WorkKind, World

STORE = StoreAddress("host", 1, "root")
START, LATER = Position(0), Position(7)
WORK = Work(WorkKind.TRAINING, 8)
EVALUATION = Work(WorkKind.EVALUATION, 8)
ME, PEER, OTHER = "me", "peer", "other"
VAULT = Restore("vault", 3)


def generation(number: int) -> Generation:
    return Generation(1, number)


def world_of(number: int, members: Sequence[str] = (ME, PEER, OTHER)) -> World:
    return World(generation(number), tuple(Member(name, Seat(place)) for place, name in enumerate(members)))


def opening(number: int, mine: Sequence[int] = (), position: Position = START, **told: Any) -> Open:
    """To me, a peer and another one; with work, unless something else is told."""
    held = {"work": WORK, **told}
    return Open(world_of(number), position, {ME: tuple(mine), PEER: (), OTHER: ()}, STORE, **held)


def opened(mine: Sequence[int] = (0, 1), **told: Any) -> Transaction:
    return Transaction(ME).open(opening(1, mine, **told))


def folded(transaction: Transaction, *indices: int) -> Transaction:
    for index in indices:
        transaction = transaction.fold(transaction.position, index)
    return transaction


def again(transaction: Transaction, mine: Sequence[int] = (), **told: Any) -> Transaction:
    """The same generation abandoned, and the next one opened."""
    number = 0 if transaction.generation is None else transaction.generation.number
    return transaction.abandon(generation(number)).open(opening(number + 1, mine, **told))

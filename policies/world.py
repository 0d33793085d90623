"""The identities and facts that every layer shares: who is a member, of which generation, at which place."""

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Generation:
    """One life of the group of members. Ordered; a (term, number) pair is never used twice.

    Attributes:
        term: the controller life that opened it.
        number: counts up within the term.
    """

    term: int
    number: int

    def next(self) -> "Generation":
        return Generation(self.term, self.number + 1)

    def __str__(self) -> str:
        return f"{self.term}.{self.number}"


@dataclass(frozen=True, order=True)
class Position:
    """How far training is: an optimizer step and the attempt at it (a void attempt is done again).

    A rank's position is where it works now; everything before it is decided.
    """

    step: int
    attempt: int = 0

    def __str__(self) -> str:
        return f"{self.step}" if self.attempt == 0 else f"{self.step} (attempt {self.attempt})"


@dataclass(frozen=True, order=True)
class Seat:
    """A place in the world: which replica, and which coordinate inside it."""

    replica: int
    coordinate: int = 0

    def __str__(self) -> str:
        return f"{self.replica}.{self.coordinate}"


@dataclass(frozen=True)
class Member:
    """One rank in the world: the unique id of its life, its seat, its node."""

    incarnation: str
    seat: Seat
    node: str = ""


@dataclass(frozen=True)
class World:
    """The members at one moment, in the order of their seats.

    Args:
        generation: the life of this group.
        members: sorted by seat; every replica holds ``ranks_per_replica`` of them.

    Raises:
        ValueError: members are unsorted, doubled, or a replica is incomplete.
    """

    generation: Generation
    members: tuple[Member, ...]
    ranks_per_replica: int = 1

    def __post_init__(self) -> None:
        seats = [member.seat for member in self.members]
        if seats != sorted(set(seats)):
            raise ValueError(f"members must be sorted by distinct seats, got {[str(seat) for seat in seats]}")
        for replica in self.replicas:
            held = [seat.coordinate for seat in seats if seat.replica == replica]
            if held != list(range(self.ranks_per_replica)):
                raise ValueError(f"replica {replica} holds coordinates {held}, not all {self.ranks_per_replica}")

    @property
    def replicas(self) -> tuple[int, ...]:
        """Ids of the replicas, ascending. They keep their ids when others leave."""
        return tuple(sorted({member.seat.replica for member in self.members}))

    @property
    def incarnations(self) -> tuple[str, ...]:
        return tuple(member.incarnation for member in self.members)

    def member(self, incarnation: str) -> Member | None:
        return next((member for member in self.members if member.incarnation == incarnation), None)

    def peers(self, coordinate: int) -> tuple[Member, ...]:
        """Members of all replicas at one coordinate: those who reduce with each other."""
        return tuple(member for member in self.members if member.seat.coordinate == coordinate)


@dataclass(frozen=True)
class Progress:
    """What one replica has of the step that is being recovered.

    Attributes:
        done: indices whose gradients it holds.
        owed: indices that it was given and has not finished; it goes on computing them.
    """

    done: frozenset[int] = frozenset()
    owed: frozenset[int] = frozenset()

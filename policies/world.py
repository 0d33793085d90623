"""The identities and facts that every layer shares: who is a member, of which generation, at which place."""

from collections.abc import KeysView, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import cached_property
from itertools import groupby, pairwise
from operator import attrgetter


@dataclass(frozen=True, order=True)
class Generation:
    """One life of the group of members. Ordered; a (term, number) pair is never used twice.

    Attributes:
        term: the controller life that opened it.
        number: counts up within the term.
    """

    term: int
    number: int

    @classmethod
    def read(cls, text: str) -> "Generation":
        """The reverse of ``str``."""
        return cls(*map(int, text.split(".")))

    def next(self) -> "Generation":
        return Generation(self.term, self.number + 1)

    def __str__(self) -> str:
        return f"{self.term}.{self.number}"


@dataclass(frozen=True, order=True)
class Position:
    """How far training is. A rank's position is where it works now; everything before it is decided.

    Attributes:
        step: the next optimizer step.
        unit: how many units of work were decided since the step before: evaluations may come before a step.
        attempt: a void attempt is done again.
    """

    step: int
    unit: int = 0
    attempt: int = 0

    @property
    def first(self) -> "Position":
        """The first attempt at it."""
        return Position(self.step, self.unit)

    def __str__(self) -> str:
        unit = f", unit {self.unit}" if self.unit else ""
        attempt = f" (attempt {self.attempt})" if self.attempt else ""
        return f"{self.step}{unit}{attempt}"


class WorkKind(StrEnum):
    """What a unit of work is for."""

    TRAINING = "training"
    EVALUATION = "evaluation"


@dataclass(frozen=True)
class Work:
    """What is decided together at one position: all microbatches of a training step, or of an evaluation.

    It is a pure function of the position, and what comes at a position is said by the user's loop, alike on every
    rank; so a rank tells it in its reports rather than the controller knows it.
    """

    kind: WorkKind
    microbatches: int

    def __str__(self) -> str:
        return f"{self.kind} over {self.microbatches} microbatches"


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
        seats = [(member.seat.replica, member.seat.coordinate) for member in self.members]
        if any(one >= two for one, two in pairwise(seats)):
            raise ValueError(f"members must be sorted by distinct seats, got {[str(one.seat) for one in self.members]}")
        whole = list(range(self.ranks_per_replica))
        for replica, group in self.groups.items():
            held = [member.seat.coordinate for member in group]
            if held != whole:
                raise ValueError(f"replica {replica} holds coordinates {held}, not all {self.ranks_per_replica}")

    @cached_property
    def groups(self) -> Mapping[int, tuple[Member, ...]]:
        """The members of every replica, in the order of replicas and coordinates."""
        by_replica = groupby(self.members, key=attrgetter("seat.replica"))
        return {replica: tuple(group) for replica, group in by_replica}

    @cached_property
    def replicas(self) -> tuple[int, ...]:
        """Ids of the replicas, ascending. They keep their ids when others leave."""
        return tuple(self.groups)

    @property
    def incarnations(self) -> tuple[str, ...]:
        """In the order of the seats."""
        return tuple(self.by_name)

    @property
    def names(self) -> KeysView[str]:
        """The same as a set."""
        return self.by_name.keys()

    def member(self, incarnation: str) -> Member | None:
        return self.by_name.get(incarnation)

    def peers(self, coordinate: int) -> tuple[Member, ...]:
        """Members of all replicas at one coordinate: those who reduce with each other."""
        return tuple(member for member in self.members if member.seat.coordinate == coordinate)

    @cached_property
    def by_name(self) -> dict[str, Member]:
        """The members by their incarnations, in the order of their seats."""
        return {member.incarnation: member for member in self.members}

    def __getstate__(self) -> dict[str, object]:
        """Only what was given travels; the rest follows from it."""
        return {item.name: getattr(self, item.name) for item in fields(self)}


@dataclass(frozen=True)
class Progress:
    """What one replica has of the step that is being recovered.

    Attributes:
        done: indices whose gradients it holds.
        owed: indices that it was given and has not finished; it goes on computing them.
        repeats: the replica whose indices these are, if this one is its shadow; None if they are its own.
    """

    done: frozenset[int] = frozenset()
    owed: frozenset[int] = frozenset()
    repeats: int | None = None

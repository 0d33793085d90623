"""A ledger with nothing around it, and all that it says."""

from dataclasses import dataclass, field

from everstep.actors.messages import FromRank, Open, Report, StoreAddress
from everstep.actors.rank.ledger import Ledger
from everstep.conf.errors import CommunicatorError
from everstep.policies.workload import Balanced, WorkloadPolicy
from everstep.policies.world import Generation, Member, Position, Seat, Work, WorkKind, World

B = 6
START = Position(0)
WORK = Work(WorkKind.TRAINING, B)


@dataclass
class Groups:
    """Notes what the ledger wants of them, in the order in which it wants it."""

    log: list[tuple[str, object]]
    place: int | None = None

    def open(self, message: Open) -> None:
        self.log.append(("open", message.world.generation.number))

    def interrupt(self, generation: Generation) -> None:
        self.log.append(("interrupt", generation.number))

    def accused(self, generation: Generation, error: CommunicatorError) -> int | None:
        return self.place


@dataclass
class Bench:
    """A ledger of rank ``me`` and all that it says."""

    place: int | None = None
    workload: WorkloadPolicy = field(default_factory=Balanced)
    seat: int = 0
    log: list[tuple[str, object]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.groups = Groups(self.log, self.place)
        self.ledger = Ledger(
            "me",
            self.send,
            self.groups,  # type: ignore[arg-type]
            self.workload,
            before_report=lambda: self.log.append(("before report", None)),
        )

    def send(self, message: FromRank) -> None:
        self.log.append(("send", message))

    @property
    def reports(self) -> list[Report]:
        return [message for what, message in self.log if what == "send" and isinstance(message, Report)]

    def open(
        self,
        number: int,
        mine: tuple[int, ...] = (0, 1),
        position: Position = START,
        peers: int = 3,
        work: Work = WORK,
        known: bool = True,
    ) -> None:
        names = ["me" if place == self.seat else f"peer-{place}" for place in range(peers)]
        world = World(generation(number), tuple(Member(name, Seat(place)) for place, name in enumerate(names)))
        indices = {name: mine if name == "me" else () for name in names}
        store = StoreAddress("host", 1, "root")
        self.ledger.open(Open(world, position, indices, store, work if known else None))

    def vote(self, number: int = 1, mine: tuple[int, ...] = (0, 1)) -> "Bench":
        """Everything folded, and in the vote of this generation."""
        self.open(number, mine)
        for index in mine:
            self.ledger.fold(START, index)
        assert self.ledger.enter(START, generation(number))
        return self


def generation(number: int) -> Generation:
    return Generation(1, number)

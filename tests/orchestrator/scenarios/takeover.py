"""What a scenario says of controllers: one dies, another one takes over, and ranks come to it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from everstep.actors.messages import FromRank, Hello, Open, Prepare, Ready, Serving
from everstep.orchestrator.machine.events import Action, Record, Send, StartRank
from everstep.orchestrator.machine.memory import note
from everstep.orchestrator.machine.past import Past, fold
from everstep.orchestrator.machine.state import State
from everstep.policies.world import Position, Work


@dataclass
class Archive:
    """What a controller leaves: its journal; and what its ranks were told."""

    entries: list[Mapping[str, object]] = field(default_factory=list)
    opened: dict[str, Open] = field(default_factory=dict)
    left: set[str] = field(default_factory=set)

    def keep(self, before: State, after: State, actions: list[Action], now: float) -> None:
        """As the controller writes it down."""
        for action in (*note(before, after), *actions):
            match action:
                case Record(what, generation, facts):
                    text = str(generation) if generation else None
                    self.entries.append({"time": now, "what": what, "generation": text, **facts})
                case StartRank(incarnation, seat):
                    facts = {"incarnation": incarnation, "seat": None if seat is None else str(seat)}
                    self.entries.append({"time": now, "what": "rank asked for", **facts})
                case Send(incarnation, Open() as message):
                    self.opened[incarnation] = message
                    self.left.discard(incarnation)
                case Send(incarnation, Prepare()):
                    self.left.add(incarnation)

    def past(self) -> Past:
        return fold(self.entries)

    def forget(self) -> None:
        """The journal is lost."""
        self.entries = []


def successor(state: State, term: int) -> State:
    """What another controller begins with."""
    names = tuple(f"{name.partition('-')[0]}-{chr(ord('a') + term - 1)}" for name in state.settings.ranks)
    return State(replace(state.settings, term=term, ranks=names, lives=chr(ord("a") + term - 1)), store=state.store)


def introduction(
    archive: Archive, name: str, pid: int, steps: int, place: Position, work: Work | None
) -> list[FromRank]:
    """What a rank says to a controller that is new to it."""
    message = archive.opened.get(name)
    said: list[FromRank] = [Hello(name, pid, "node")]
    if message is not None:
        said.append(Serving(name, message.world, name in archive.left, place, work, message.poison))
    return [*said, Ready(name, {"weight": "the same"}, steps)]

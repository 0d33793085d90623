"""Who reaches whom; and control connections, in order while they last, that lose what is under way when they break."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .chance import Chance
from .clock import Clock


@dataclass(frozen=True)
class _Cut:
    one: frozenset[str]
    other: frozenset[str]
    until: float


class Network:
    """Ranks and controllers by name, and the cuts between them.

    Args:
        clock: of the run.
        chance: of the run.
        doubling: share of messages that arrive a second time, some time later.
    """

    def __init__(self, clock: Clock, chance: Chance, doubling: float = 0.0) -> None:
        self.clock = clock
        self.chance = chance
        self.doubling = doubling
        self._cuts: list[_Cut] = []

    def cut(self, one: frozenset[str], other: frozenset[str], seconds: float) -> None:
        """Nothing gets from one side to the other for a while; what is sent meanwhile arrives afterwards."""
        self._cuts.append(_Cut(one, other, self.clock.now + seconds))

    def heals(self, one: str, other: str) -> float:
        """When these two reach each other again; now if they do."""
        now = when = self.clock.now
        if not self._cuts:
            return now
        self._cuts = [cut for cut in self._cuts if cut.until > now]
        for cut in self._cuts:
            if (one in cut.one and other in cut.other) or (one in cut.other and other in cut.one):
                when = max(when, cut.until)
        return when

    def whole(self, names: tuple[str, ...]) -> float:
        """When all of these reach each other; now if they do."""
        if not self._cuts:
            return self.clock.now
        return max(self.heals(one, other) for one in names for other in names)


class Connection:
    """One control connection.

    Args:
        network: that it goes over.
        rank: name of its one end.
        controller: name of the other.
        up: hears what the rank says.
        down: hears what the controller says.
        ended_up: called at the controller's end when the connection is gone.
        ended_down: likewise at the rank's.
    """

    def __init__(
        self,
        network: Network,
        rank: str,
        controller: str,
        up: Callable[[Any], None],
        down: Callable[[Any], None],
        ended_up: Callable[[], None],
        ended_down: Callable[[], None],
    ) -> None:
        self._network = network
        self.rank = rank
        self._ends = (rank, controller)
        self._hear = {"up": up, "down": down}
        self._ended = {"up": ended_up, "down": ended_down}
        self._last = {"up": 0.0, "down": 0.0}
        self._lost = False
        self.open = True

    def say_up(self, message: Any) -> None:
        self._say("up", message)

    def say_down(self, message: Any) -> None:
        self._say("down", message)

    def close(self, notices: str = "up") -> None:
        """One end leaves: what it has sent still arrives at the other one, then the end of the connection."""
        if self.open:
            self.open = False
            self._network.clock.at(self._arrival(notices), self._ended[notices])

    def break_off(self) -> None:
        """What is under way is lost, and both ends learn of it."""
        if self.open:
            self.open, self._lost = False, True
            for way, ended in self._ended.items():
                self._network.clock.at(self._arrival(way), ended)

    def vanish(self) -> None:
        """The machine of one end is gone: what is under way is lost, and the other end learns nothing."""
        self.open, self._lost = False, True

    def _say(self, way: str, message: Any) -> None:
        if not self.open:
            return
        network = self._network
        when = self._arrival(way)
        network.clock.at(when, self._deliver, way, message)
        if network.doubling and network.chance.of(network.doubling):
            network.clock.at(when + network.chance.within(8.0), self._deliver, way, message)

    def _arrival(self, way: str) -> float:
        """Never before what was sent earlier."""
        network = self._network
        soonest = network.heals(*self._ends) + network.chance.latency()
        self._last[way] = max(self._last[way], soonest)
        return self._last[way]

    def _deliver(self, way: str, message: Any) -> None:
        if not self._lost:
            self._hear[way](message)

"""One life of the controller in virtual time: the real machine, its connections, its pauses."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ....actors.messages import Heartbeat, Open, Ping
from ...machine import events
from ...machine.state import Settings, State
from ...machine.transition import advance
from .network import Connection

if TYPE_CHECKING:
    from .ranks import Rank
    from .simulation import Simulation


class Controller:
    """Feeds a machine with events and carries out what it asks for.

    Args:
        simulation: that it lives in.
        settings: of its life; the term is in them.

    Attributes:
        asleep_until: while it is stopped it hears nothing, and what is said to it waits.
        over: whether it has ended the run.
    """

    def __init__(self, simulation: "Simulation", settings: Settings) -> None:
        self._simulation = simulation
        self.name = f"controller {settings.term}"
        self.state = State(settings)
        self.alive = True
        self.over = False
        self.asleep_until = 0.0
        self._connections: dict[str, Connection] = {}

    def start(self) -> None:
        self._tell(events.Started())
        self._tell(events.StoreOpened("host", 1))
        self._simulation.clock.after(self._interval, self._tick)

    def doze(self, seconds: float) -> None:
        """Stop hearing and deciding for a while."""
        self.asleep_until = max(self.asleep_until, self._simulation.clock.now + seconds)

    def hear(self, event: events.Event) -> None:
        """Something happened; while it sleeps it does not know."""
        if self._simulation.clock.now < self.asleep_until:
            self._simulation.clock.at(self.asleep_until, self.hear, event)
        elif self.alive and not self.over:
            self._tell(event)

    def accept(self, rank: "Rank", hear: Callable[[Any], None], lost: Callable[[], None]) -> Connection:
        """A rank connects."""
        name = rank.name
        connection = Connection(
            self._simulation.network,
            name,
            self.name,
            up=lambda message: self.hear(events.Heard(name, message)),
            down=hear,
            ended_up=lambda: self.hear(events.Ended(name, "its connection ended")),
            ended_down=lost,
        )
        self._connections[name] = connection
        return connection

    @property
    def _interval(self) -> float:
        return self.state.settings.timeouts.heartbeat_interval

    def _tick(self) -> None:
        late = max(0.0, self.asleep_until - self._simulation.clock.now)
        self._simulation.clock.after(late, self.hear, events.Tick(late if late > self._interval else 0.0))
        self._simulation.clock.after(late + self._interval, self._tick)

    def _tell(self, event: events.Event) -> None:
        simulation, before = self._simulation, self.state
        self.state, actions = advance(before, event, simulation.clock.now)
        if _is_news(event):
            simulation.note("controller hears {}", event)
        world = self.state.world
        if world is not before.world:
            simulation.observe(before, self.state, actions)
        for action in actions:
            self._carry_out(action, before)

    def _carry_out(self, action: events.Action, before: State) -> None:
        simulation = self._simulation
        match action:
            case events.Send(name, message):
                self._send(name, message, before)
            case events.StartRank(name, seat, avoid):
                simulation.clock.after(simulation.chance.latency(), simulation.cluster.start, name, seat, avoid, self)
            case events.KillRank(name, _):
                simulation.cluster.kill(name, self)
            case events.Record(what):
                simulation.saw(what)
            case events.EndRun():
                self.over = True

    def _send(self, name: str, message: Any, before: State) -> None:
        simulation = self._simulation
        if not isinstance(message, Ping):
            simulation.note("to {}: {} {}", name, type(message).__name__, getattr(message, "generation", ""))
        if isinstance(message, Open):
            simulation.checks.sent(message, before.world.generation if before.world else None)
        connection = self._connections.get(name)
        if connection is not None:
            connection.say_down(message)


def _is_news(event: events.Event) -> bool:
    if isinstance(event, events.Tick):
        return False
    return not (isinstance(event, events.Heard) and isinstance(event.message, Heartbeat))

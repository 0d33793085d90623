"""One life of the controller in virtual time: the real machine, its connections, its pauses, its end."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ....actors.messages import Heartbeat, Hello, Open, Ping, Serving
from ....policies.world import Generation
from ...machine import events
from ...machine.memory import inherited, note
from ...machine.settings import Settings
from ...machine.state import State
from ...machine.transition import advance
from .network import Connection

if TYPE_CHECKING:
    from .ranks import Rank
    from .simulation import Simulation


class Controller:
    """Feeds a machine with events and carries out what it asks for, for as long as it holds the newest term.

    Args:
        simulation: that it lives in.
        settings: of its life; the term is in them.

    Attributes:
        alive: whether its process is there; it may be stopped.
        over: whether it has ended the run.
    """

    def __init__(self, simulation: "Simulation", settings: Settings) -> None:
        self._simulation = simulation
        self.term = settings.term
        self.name = f"controller {settings.term}"
        self.state = State(settings)
        self.alive = True
        self.over = False
        self._asleep_until = 0.0
        self._dying = False
        self._connections: dict[str, Connection] = {}
        self._worlds_heard: set[Generation] = set()

    def start(self, *begin: events.Event) -> None:
        """Begin with these events; ranks may have come meanwhile."""
        self._awake(self._begin, begin)
        self._simulation.clock.after(self._interval, self._tick)

    def doze(self, seconds: float) -> None:
        """It is stopped: it hears and decides nothing for a while, and its connections stay open."""
        self._asleep_until = max(self._asleep_until, self._simulation.clock.now + seconds)
        self._simulation.disturb(seconds)

    def crash(self) -> None:
        """Its process is gone; what it has sent still arrives."""
        self._simulation.note("{} is gone", self.name)
        self._leave()

    def crash_soon(self) -> None:
        """It dies between two of the things that it does about one event."""
        self._dying = True

    def hear(self, event: events.Event) -> None:
        """Something happened in the cluster."""
        self._awake(self._tell, event)

    def accept(self, rank: "Rank", hear: Callable[[Any], None], lost: Callable[[], None]) -> Connection:
        """A rank connects; who it is it says itself."""
        connection = Connection(
            self._simulation.network,
            rank.name,
            self.name,
            up=lambda message: self._awake(self._receive, connection, message),
            down=hear,
            ended_up=lambda: self._awake(self._closed, connection),
            ended_down=lost,
        )
        return connection

    # --- its process

    @property
    def _interval(self) -> float:
        return self.state.settings.timeouts.heartbeat_interval

    def _awake(self, do: Callable[..., None], *facts: Any) -> None:
        """Do something now, or as soon as it wakes up; never, if it is gone."""
        if not self.alive:
            return
        if self._simulation.clock.now < self._asleep_until:
            self._simulation.clock.at(self._asleep_until, self._awake, do, *facts)
        elif not self.over:
            do(*facts)

    def _begin(self, begin: tuple[events.Event, ...]) -> None:
        for event in begin:
            self._tell(event)

    def _receive(self, connection: Connection, message: Any) -> None:
        if isinstance(message, Hello):
            self._connections[connection.rank] = connection
        self._tell(events.Heard(connection.rank, message))

    def _closed(self, connection: Connection) -> None:
        """A connection is gone, and with it, as far as anybody can tell, the process; unless it has come again."""
        if self._connections.get(connection.rank) is connection:
            del self._connections[connection.rank]
            self._tell(events.Ended(connection.rank, "its connection ended"))

    def _tick(self) -> None:
        """The clock of its own loop; it also asks whether a newer term was taken."""
        if not self.alive or self.over:
            return
        simulation = self._simulation
        late = max(0.0, self._asleep_until - simulation.clock.now)
        simulation.clock.after(late, self._awake, self._beat, late if late > self._interval else 0.0)
        simulation.clock.after(late + self._interval, self._tick)

    def _beat(self, asleep: float) -> None:
        if self._holds():
            self._tell(events.Tick(asleep))

    def _holds(self) -> bool:
        """Whether it may still act; if not, it leaves ranks, results and files alone."""
        if self._simulation.lives.newest is self:
            return True
        self._simulation.note("{} is deposed", self.name)
        self._simulation.saw("deposed")
        self._leave()
        return False

    def _acts(self) -> bool:
        """Whether it may still act, and is about to."""
        acts = self._holds()
        if acts:
            self._simulation.checks.acts(self.term, self._simulation.lives.newest.term)
        return acts

    def _leave(self) -> None:
        self.alive = False
        for connection in list(self._connections.values()):
            connection.close(notices="down")

    # --- its machine

    def _tell(self, event: events.Event) -> None:
        if not self.alive or self.over:
            return
        simulation, before = self._simulation, self.state
        self.state, actions = advance(before, event, simulation.clock.now)
        if _is_news(event):
            simulation.note("{} hears {}", self.name, event)
        world = self.state.world
        if simulation.lives.newest is self:
            simulation.corruption.observe(event, before, self.state, actions)
        if isinstance(event, events.Heard) and isinstance(event.message, Serving):
            self._hears_of_world(before, event.incarnation, event.message)
        if world is not None and before.adoption is not None and self.state.adoption is None:
            simulation.checks.adopted(world, self._worlds_heard)
        if world is not before.world:
            simulation.observe(self, before, self.state, actions)
        if isinstance(event, events.TookOver):
            # What earlier lives have written down needs no second line.
            before = inherited(before, event.past, simulation.clock.now - event.at)
        whole = [*note(before, self.state), *actions]
        if self._dying and len(whole) > 1:
            whole = whole[: simulation.chance.between(0, len(whole) - 1)]
            self._carry_out_all(whole, before)
            if self.alive:
                self.crash()
            return
        self._carry_out_all(whole, before)

    def _hears_of_world(self, before: State, name: str, message: Serving) -> None:
        """What somebody says counts who is not shut out."""
        rank = before.ranks.get(name)
        if rank is not None and rank.standing.living:
            self._worlds_heard.add(message.world.generation)

    def _carry_out_all(self, actions: list[events.Action], before: State) -> None:
        for action in actions:
            if not self.alive:
                return
            self._carry_out(action, before)

    def _carry_out(self, action: events.Action, before: State) -> None:
        simulation = self._simulation
        match action:
            case events.Send(name, message):
                self._send(name, message, before)
            case events.StartRank(name, seat, avoid):
                if self._acts():
                    asked = {"incarnation": name, "seat": None if seat is None else str(seat)}
                    simulation.lives.write(self.term, events.Record("rank asked for", facts=asked))
                    simulation.clock.after(simulation.chance.latency(), simulation.cluster.start, name, seat, avoid)
            case events.KillRank(name, _):
                if self._acts():
                    simulation.cluster.kill(name, self)
            case events.Record(what):
                simulation.saw(what)
                simulation.lives.write(self.term, action)
            case events.Undo(undone):
                simulation.snapshots.undo(undone)
            case events.EndRun():
                self.over = self._acts()

    def _send(self, name: str, message: Any, before: State) -> None:
        simulation = self._simulation
        if not isinstance(message, Ping):
            simulation.note("{} to {}: {} {}", self.name, name, type(message).__name__, _generation(message))
        if isinstance(message, Open):
            # What takes over may open the next one in the same turn in which it adopts the newest that it has heard of.
            adopted = max(self._worlds_heard, default=None)
            simulation.checks.sent(message, before.world.generation if before.world else adopted)
        connection = self._connections.get(name)
        if connection is not None:
            connection.say_down(message)


def _generation(message: Any) -> object:
    return message.world.generation if isinstance(message, Open) else getattr(message, "generation", "")


def _is_news(event: events.Event) -> bool:
    if isinstance(event, events.Tick | events.Room):
        return False
    return not (isinstance(event, events.Heard) and isinstance(event.message, Heartbeat))

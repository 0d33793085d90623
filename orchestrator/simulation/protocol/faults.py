"""Everything that hits a run. Where is drawn by the points of the protocol that go by, and by the clock."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from ...machine import events
from .ranks import Rank

if TYPE_CHECKING:
    from .simulation import Simulation

# Points of the protocol, and how much likelier a fault is at them than at another one.
POINTS = {
    "start": 1.0,
    "fetch": 2.0,
    "compute": 0.3,
    "sum": 1.0,
    "vote": 2.0,
    "voted": 2.0,
    "apply": 1.0,
    "report": 4.0,
    "open": 3.0,
    "built": 2.0,
    "finished": 1.0,
}
# What is counted as a fault. Connections that break, errors without a death and messages that are late or doubled
# happen beside them.
COUNTED = ("crash", "node", "stop", "nap", "partition", "doze", "controller", "replaced")
_KINDS = ("crash",) * 6 + ("nap", "partition") * 4 + ("node", "stop", "doze", "cut", "raise", "glitch") * 2 + (
    "drain", "resize", "controller", "controller", "replaced")  # fmt: skip
# Without a death the same members form their group again, and the third time somebody is shut out.
_GLITCHES = 2


class Faults:
    """The faults of one run.

    Args:
        simulation: that they hit.
    """

    def __init__(self, simulation: "Simulation") -> None:
        self._simulation = simulation
        self._left = simulation.scenario.faults
        self._glitches = 0
        self._hits: dict[str, Callable[[Rank], None]] = {
            "crash": self._crash,
            "node": self._node,
            "stop": lambda rank: self._freeze(rank, 60.0),
            "nap": lambda rank: self._freeze(rank, simulation.chance.within(12.0)),
            "partition": self._partition,
            "doze": lambda rank: simulation.controller.doze(simulation.chance.within(10.0)),
            "controller": self._controller,
            "replaced": self._replaced,
            "cut": self._break,
            "raise": self._raise,
            "glitch": self._glitch,
            "drain": lambda rank: simulation.cluster.drain(rank.node),
            "resize": self._resize,
        }
        self._countdown = self._next()

    def start(self) -> None:
        """Some faults come by the clock, whatever the ranks are about."""
        if self._left and self._simulation.chance.of(0.5):
            self._simulation.clock.after(self._simulation.chance.within(10.0), self._at_any_time)

    def strike(self, point: str, rank: Rank) -> None:
        """A rank goes through a point of the protocol; perhaps that is the end of it."""
        if not self._left or not rank.alive or rank.frozen:
            return
        self._countdown -= POINTS[point]
        if self._countdown <= 0:
            self._countdown = self._next()
            self._hit(rank, point)

    def _at_any_time(self) -> None:
        there = [rank for rank in self._simulation.ranks.values() if rank.alive and not rank.frozen]
        if self._left and there:
            rank = self._simulation.chance.pick(there)
            self._hit(rank, rank.training.stage)
            self._simulation.stir(rank.name)
        self.start()

    def _next(self) -> float:
        return 2.0 * self._simulation.chance.share() * self._simulation.scenario.calm

    def _hit(self, rank: Rank, point: str) -> None:
        self._left -= 1
        self._simulation.disturb(60.0)
        kind = self._simulation.chance.pick(_KINDS)
        self._simulation.note("{} of {} at {}", kind, rank.name, point)
        self._simulation.hit(kind, point)
        self._hits[kind](rank)

    def _crash(self, rank: Rank) -> None:
        rank.hit = True
        rank.vanish()

    def _node(self, rank: Rank) -> None:
        self._simulation.cluster.crash(rank.node)

    def _freeze(self, rank: Rank, seconds: float) -> None:
        rank.hit = True
        rank.freeze(seconds)

    def _controller(self, rank: Rank) -> None:
        """The controller dies, at once or in the middle of something, and another one takes over."""
        simulation = self._simulation
        if simulation.chance.of(0.5):
            simulation.controller.crash()
        else:
            simulation.controller.crash_soon()
        simulation.lives.follow(0.5 + simulation.chance.within(5.0))

    def _replaced(self, rank: Rank) -> None:
        """The controller is stopped, another one takes over, and the first one wakes up some time later."""
        simulation = self._simulation
        simulation.controller.doze(simulation.chance.within(40.0))
        simulation.lives.follow(0.5 + simulation.chance.within(5.0))

    def _break(self, rank: Rank) -> None:
        rank.hit = True
        if rank.connection is not None:
            if self._simulation.chance.of(0.5):
                rank.connection.close()
            else:
                rank.connection.break_off()

    def _raise(self, rank: Rank) -> None:
        rank.hit = rank.raising = True

    def _glitch(self, rank: Rank) -> None:
        """An error in the group, without a death."""
        generation = rank.ledger.transaction.generation
        if generation is not None and self._glitches < _GLITCHES:
            self._glitches += 1
            self._simulation.fabric.leave(rank.name, generation)

    def _resize(self, rank: Rank) -> None:
        """Somebody outside wants more or fewer replicas."""
        scenario = self._simulation.scenario
        wanted = self._simulation.chance.between(scenario.minimum, scenario.replicas + 2)
        self._simulation.lives.newest.hear(events.Resize(wanted))

    def _partition(self, rank: Rank) -> None:
        """Some ranks are cut off from the controller, from other ranks, or from both, for a while."""
        simulation = self._simulation
        chance, names = simulation.chance, [other.name for other in simulation.ranks.values() if other.alive]
        near = {other.name for other in simulation.ranks.values() if other.node == rank.node}
        cut = frozenset(near if chance.of(0.5) else {rank.name, *(name for name in names if chance.of(0.3))})
        others = frozenset(names) - cut
        controller = frozenset({simulation.controller.name})
        beyond = chance.pick((controller, others, others | controller))
        seconds = chance.within(chance.pick((4.0, 12.0, 40.0)))
        simulation.network.cut(cut, beyond, seconds)
        simulation.disturb(seconds)
        for name in cut if controller <= beyond or len(cut) <= len(others) else others:
            simulation.ranks[name].hit = True

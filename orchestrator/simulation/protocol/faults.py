"""Everything that hits a run. Where is drawn by the points of the protocol that go by, and by the clock."""

import math
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
# Without a death the same members form their group again, and the third time somebody is shut out.
_GLITCHES = 2
# How often it is looked whether something is saved.
_LOOKS_S = 0.2


class Faults:
    """The faults of one run.

    Args:
        simulation: that they hit.
    """

    def __init__(self, simulation: "Simulation") -> None:
        self._simulation = simulation
        self._left = simulation.scenario.trouble.faults
        self._glitches = 0
        self._hits: dict[str, Callable[[Rank], None]] = {
            "crash": self._crash,
            "node": self._node,
            "stop": lambda rank: self._freeze(rank, 60.0),
            "nap": lambda rank: self._freeze(rank, self._within(12.0)),
            "partition": self._partition,
            "doze": lambda rank: simulation.controller.doze(self._within(10.0)),
            "controller": self._controller,
            "replaced": self._replaced,
            "cut": self._break,
            "raise": self._raise,
            "glitch": self._glitch,
            "drain": lambda rank: simulation.cluster.drain(rank.node),
            "resize": self._resize,
        }
        self._countdown = math.inf
        self._rests_until = 0.0

    def start(self) -> None:
        """From now on; or from when something is saved, if the run is to live long."""
        simulation = self._simulation
        if simulation.scenario.trouble.waits and not simulation.controller.state.saved:
            simulation.clock.after(_LOOKS_S, self.start)
        else:
            self._next()

    def rest(self, seconds: float) -> None:
        """None for a while, so that what was done last is seen to its end."""
        self._rests_until = self._simulation.clock.now + seconds

    def strike(self, point: str, rank: Rank) -> None:
        """A rank goes through a point of the protocol; perhaps that is the end of it."""
        if not self._left or not rank.alive or rank.frozen:
            return
        self._simulation.corruption.strike(rank)
        if self._simulation.clock.now < self._rests_until:
            return
        self._countdown -= POINTS[point]
        if self._countdown <= 0 and self._fit(rank):
            self._hit(rank, point)

    def _next(self) -> None:
        """The next one comes after so many points or so many seconds: also while everybody stands still."""
        trouble, share = self._simulation.scenario.trouble, self._simulation.chance.share
        points, seconds = (
            (trouble.calm, trouble.seconds) if (trouble.faults - self._left) % trouble.burst else trouble.lull
        )
        self._countdown = 2.0 * points * share()
        self._simulation.clock.after(2.0 * seconds * share(), self._at_any_time, self._left)

    def _at_any_time(self, left: int) -> None:
        if left != self._left or not left:
            return
        if self._simulation.clock.now < self._rests_until:
            self._simulation.clock.at(self._rests_until, self._at_any_time, left)
            return
        ranks = self._simulation.ranks.values()
        if there := [rank for rank in ranks if rank.alive and not rank.frozen and self._fit(rank)]:
            rank = self._simulation.chance.pick(there)
            self._hit(rank, rank.training.stage)
            self._simulation.stir(rank.name)
        else:
            self._next()

    def _within(self, seconds: float) -> float:
        """How long something lasts that passes by itself."""
        return self._simulation.chance.within(seconds * self._simulation.scenario.trouble.brevity)

    def _fit(self, rank: Rank) -> bool:
        """Whoever is new is mostly spared: ranks that come to nothing are asked for ever more rarely."""
        return rank.training.computed > 0 or self._simulation.chance.of(self._simulation.scenario.trouble.newcomers)

    def _hit(self, rank: Rank, point: str) -> None:
        self._left -= 1
        self._next()
        self._simulation.disturb(60.0)
        kind = self._simulation.chance.pick(self._simulation.scenario.trouble.kinds)
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
        simulation.controller.doze(self._within(40.0))
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
        seconds = self._within(chance.pick((4.0, 12.0, 40.0)))
        simulation.network.cut(cut, beyond, seconds)
        simulation.disturb(seconds)
        for name in cut if controller <= beyond or len(cut) <= len(others) else others:
            simulation.ranks[name].hit = True

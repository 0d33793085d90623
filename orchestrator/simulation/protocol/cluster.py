"""The simulated cluster: nodes with ranks on them, which are started, killed and lost."""

from typing import TYPE_CHECKING

from ...machine import events
from .ranks import Rank

if TYPE_CHECKING:
    from .controllers import Controller
    from .simulation import Simulation

# Seconds after which the cluster tells of an end that it was not told of by a connection.
_NOTICE_S = 1.0


class Cluster:
    """What carries ranks.

    Args:
        simulation: that it is part of.
        nodes: their names.
    """

    def __init__(self, simulation: "Simulation", nodes: tuple[str, ...]) -> None:
        self._simulation = simulation
        self.nodes = list(nodes)

    def start(self, name: str, controller: "Controller") -> None:
        """A new process, on a node that has fewest."""
        simulation = self._simulation
        held = dict.fromkeys(self.nodes, 0)
        for rank in simulation.ranks.values():
            if rank.alive and rank.node in held:
                held[rank.node] += 1
        node = min(self.nodes, key=lambda node: held[node])
        simulation.ranks[name] = Rank(simulation, name, node)
        simulation.ranks[name].start(controller)

    def kill(self, name: str, controller: "Controller") -> None:
        """As soon as the node can be reached; who is cut off may be out of reach for good: its lease ends it."""
        simulation = self._simulation
        rank = simulation.ranks.get(name)
        if rank is None or not rank.alive:
            return
        connected = rank.connection is not None and rank.connection.open
        if connected or simulation.chance.of(0.5):
            delay = simulation.chance.latency() + (simulation.chance.within(6.0) if rank.frozen else 0.0)
            simulation.clock.at(simulation.network.heals(name, controller.name) + delay, rank.vanish)

    def crash(self, node: str) -> None:
        """A machine is gone with all ranks on it, and with what they had sent last."""
        for rank in list(self._simulation.ranks.values()):
            if rank.alive and rank.node == node:
                rank.hit = True
                rank.vanish(unseen=True)

    def lost(self, rank: Rank, unseen: bool) -> None:
        """The cluster notices the end of a process later than its connection does, and that of a machine much later."""
        simulation = self._simulation
        delay = _NOTICE_S + simulation.chance.latency() + (simulation.chance.within(10.0) if unseen else 0.0)
        simulation.clock.after(delay, simulation.tell, events.Ended(rank.name, "its process ended"))

"""The simulated cluster: machines with room for ranks, which are started, killed and lost; and which come back."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ....policies.world import Seat
from ...machine import events
from ...machine.past import Past
from .ranks import Rank

if TYPE_CHECKING:
    from .controllers import Controller
    from .simulation import Simulation

# Seconds after which the cluster tells of an end that it was not told of by a connection.
_NOTICE_S = 1.0


@dataclass(frozen=True)
class _Wish:
    name: str
    seat: Seat | None
    avoid: frozenset[str]


class Cluster:
    """What carries ranks.

    Args:
        simulation: that it is part of.
    """

    def __init__(self, simulation: "Simulation") -> None:
        self._simulation = simulation
        self.nodes = list(simulation.scenario.nodes)
        self.draining: set[str] = set()
        self._wishes: list[_Wish] = []
        self._known: set[str] = set()
        self._made = len(self.nodes)

    # --- ranks

    def start(self, name: str, seat: Seat | None, avoid: frozenset[str]) -> None:
        """Somebody asks for a process; it comes when there is room."""
        self._known.add(name)
        self._wishes.append(_Wish(name, seat, avoid))
        self._serve()

    def living(self) -> frozenset[str]:
        """Ranks of which the cluster knows no end."""
        return frozenset(self._known)

    def introduce(self, controller: "Controller", past: Past) -> None:
        """What a controller that has taken over hears of the cluster by itself."""
        for name, known in past.ranks.items():
            if not known.gone and name not in self._known:
                self._simulation.clock.after(_NOTICE_S, controller.hear, events.Ended(name, "its process is gone"))
        for node in sorted(self.draining & set(self.nodes)):
            controller.hear(events.NodeDraining(node, "it is taken away"))
        self._serve()

    def kill(self, name: str, controller: "Controller") -> None:
        """As soon as the node can be reached; who is cut off may be out of reach for good: its lease ends it."""
        simulation = self._simulation
        self._wishes = [wish for wish in self._wishes if wish.name != name]
        rank = simulation.ranks.get(name)
        if rank is None or not rank.alive:
            return
        if rank.connected or simulation.chance.of(0.5):
            delay = simulation.chance.latency() + (simulation.chance.within(6.0) if rank.frozen else 0.0)
            simulation.clock.at(simulation.network.heals(name, controller.name) + delay, rank.vanish)

    def ended(self, rank: Rank, unseen: bool) -> None:
        """The cluster notices the end of a process later than its connection does, and that of a machine much later."""
        simulation = self._simulation
        delay = _NOTICE_S + simulation.chance.latency() + (simulation.chance.within(10.0) if unseen else 0.0)
        simulation.clock.after(delay, self._tell_of_end, rank.name)
        simulation.clock.after(_NOTICE_S, self._serve)

    def _tell_of_end(self, name: str) -> None:
        self._known.discard(name)
        self._simulation.lives.tell(events.Ended(name, "its process ended"))

    # --- machines

    def crash(self, node: str) -> None:
        """A machine is gone with all ranks on it, and with what they had sent last."""
        if node not in self.nodes:
            return
        simulation = self._simulation
        self.nodes.remove(node)
        for rank in list(simulation.ranks.values()):
            if rank.alive and rank.node == node:
                rank.hit = True
                rank.vanish(unseen=True)
        if simulation.chance.of(0.7):
            delay = simulation.chance.within(10.0)
            simulation.clock.after(delay, simulation.lives.tell, events.NodeLost(node, "its daemon is gone"))
        self._replace()

    def drain(self, node: str) -> None:
        """A machine is to be left, and will be gone a while later."""
        if node not in self.nodes or node in self.draining:
            return
        simulation = self._simulation
        self.draining.add(node)
        simulation.lives.tell(events.NodeDraining(node, "it is taken away"))
        simulation.disturb(60.0)
        simulation.clock.after(simulation.chance.within(60.0), self.crash, node)

    def _replace(self) -> None:
        simulation = self._simulation
        mean = simulation.scenario.returns
        if mean is not None:
            delay = simulation.chance.within(2 * mean)
            simulation.disturb(delay)
            simulation.clock.after(delay, self._arrive)

    def _arrive(self) -> None:
        self.nodes.append(f"node {self._made}")
        self._made += 1
        self._simulation.saw("a machine came")
        self._serve()

    # --- room

    def _serve(self) -> None:
        """Start what fits, and tell how much more would."""
        free = self._free()
        rest = []
        for wish in self._wishes:
            node = max((one for one in free if one not in wish.avoid), key=lambda one: free[one], default=None)
            if node is None or not free[node]:
                rest.append(wish)
                continue
            free[node] -= 1
            rank = Rank(self._simulation, wish.name, node, wish.seat)
            self._simulation.ranks[wish.name] = rank
            self._simulation.clock.after(self._simulation.chance.latency(), rank.start)
        self._wishes = rest
        room = max(0, sum(free.values()) - len(rest)) // self._simulation.scenario.ranks_per_replica
        self._simulation.clock.after(_NOTICE_S, self._simulation.lives.tell, events.Room(room))

    def _free(self) -> dict[str, int]:
        free = {node: self._simulation.scenario.places for node in self.nodes if node not in self.draining}
        for rank in self._simulation.ranks.values():
            if rank.occupies and rank.node in free:
                free[rank.node] -= 1
        return free

"""States that were saved outside of the ranks. What is saved of a state is what was gone through to get there."""

from typing import TYPE_CHECKING

from ....actors.saved.sources import START
from ....policies.retention import Undone
from ....policies.world import Generation, Position
from ...machine import events
from .corruption import Held

if TYPE_CHECKING:
    from .controllers import Controller
    from .ranks import Rank
    from .simulation import Simulation


class Snapshots:
    """Vaults hold every few steps, storage fewer.

    Args:
        simulation: whose states these are.
    """

    def __init__(self, simulation: "Simulation") -> None:
        self._simulation = simulation
        self._held: dict[tuple[str, int], Held] = {}
        self._undone: Undone | None = None

    def offer(self, rank: "Rank", position: Position, held: Held) -> None:
        """A rank has the state before this position; the first one to come to a step saves it, if it may."""
        simulation, every, step = self._simulation, self._simulation.scenario.saves, position.step
        if not every or not step or step % every or position != Position(step):
            return
        if not self._may(rank, step, held.generation):
            return
        for source, rarer in (("vault", 1), ("storage", 2)):
            if step % (rarer * every) == 0 and (source, step) not in self._held:
                self._held[source, step] = held
                simulation.clock.after(simulation.chance.within(1.0), self._tell, source, step, held)

    def _may(self, rank: "Rank", step: int, generation: Generation) -> bool:
        """Nothing is saved without the controller, which must have heard of it and take the rank for living."""
        network, controller = self._simulation.network, self._simulation.controller
        known = controller.state.ranks.get(rank.name)
        heard = rank.connected and network.heals(rank.name, controller.name) <= self._simulation.clock.now
        undone = self._undone is not None and self._undone.covers(step, generation)
        return heard and known is not None and known.standing.living and not undone

    def undo(self, undone: Undone) -> None:
        """What is wrong is dropped, also when it comes later."""
        self._undone = undone
        for source, step in [place for place, held in self._held.items() if undone.covers(place[1], held.generation)]:
            del self._held[source, step]

    def _tell(self, source: str, step: int, held: Held) -> None:
        if self._held.get((source, step)) is held:
            self._simulation.lives.tell(events.Saved(source, step, generation=held.generation))

    def found(self, *sources: str) -> list[events.Saved]:
        """What a controller that has taken over finds there."""
        steps = {source: sorted(step for held, step in self._held if held == source) for source in sources}
        return [events.Saved(source, held[-1], tuple(held)) for source, held in steps.items() if held]

    def introduce(self, controller: "Controller") -> None:
        """Vaults come to a controller that has taken over, and say what they hold."""
        self._simulation.clock.after(self._simulation.chance.within(1.0), self._come, controller)

    def _come(self, controller: "Controller") -> None:
        for event in self.found("vault"):
            controller.hear(event)

    def read(self, source: str, step: int) -> Held | None:
        """None if it was dropped since it was told of."""
        return Held() if source == START else self._held.get((source, step))

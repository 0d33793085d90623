"""Every life of the controller: who holds the newest term, what their journals say, and who comes next."""

from dataclasses import replace
from typing import TYPE_CHECKING

from ...machine import events
from ...machine.past import Past
from ...machine.settings import Settings
from ...machine.trust import CORRUPTION
from .controllers import Controller
from .journals import Journals

if TYPE_CHECKING:
    from .simulation import Simulation


class Lives:
    """The controllers of one run, of which only the newest may act.

    Args:
        simulation: that they live in.

    Attributes:
        all: in the order of their terms.
        newest: the last of them.
    """

    def __init__(self, simulation: "Simulation") -> None:
        self._simulation = simulation
        self._journals = Journals(simulation.chance)
        self.all: list[Controller] = []
        self.newest: Controller

    def begin(self) -> None:
        """The first life."""
        self._take().start(events.Started(), events.StoreOpened("host", 1))

    def follow(self, delay: float) -> None:
        """Another one takes over after a while, unless somebody has done so."""
        self._simulation.disturb(delay)
        self._simulation.clock.after(delay, self._take_over, len(self.all))

    def write(self, term: int, record: events.Record) -> None:
        """A line of a journal."""
        self._journals.write(term, self._simulation.clock.now, record)

    def tell(self, event: events.Event) -> None:
        """Whoever lives hears of something in the cluster."""
        for controller in self.all:
            controller.hear(event)

    def _take_over(self, lives: int) -> None:
        if len(self.all) > lives:
            return
        simulation = self._simulation
        past = self._read()
        controller = self._take()
        simulation.note("{} takes over: {}", controller.name, past)
        simulation.saw("took over")
        # Ranks may come before it knows what to make of them.
        controller.doze(simulation.chance.short())
        living = simulation.cluster.living() if simulation.chance.of(0.5) else None
        saved = simulation.snapshots.found(*past.saved)
        controller.start(events.StoreOpened("host", 1), *saved, events.TookOver(past, living, simulation.clock.now))
        simulation.snapshots.introduce(controller)
        simulation.cluster.introduce(controller, past)

    def _take(self) -> Controller:
        self._journals.begin()
        controller = Controller(self._simulation, self._settings(len(self.all) + 1))
        self.all.append(controller)
        self.newest = controller
        return controller

    def _read(self) -> Past:
        past = self._journals.read()
        if past is None:
            self._simulation.saw("journals were lost")
            past = Past()
        if self._journals.torn:
            self._simulation.corruption.forgot()
        if past.undone is not None:
            self._simulation.snapshots.undo(past.undone)
        # Storage is looked through, and vaults are waited for where they are known to hold something.
        sources = [source for source in ("storage", "vault") if source == "storage" or source in past.saved]
        return replace(past, saved={found.source: found.step for found in self._simulation.snapshots.found(*sources)})

    def _settings(self, term: int) -> Settings:
        scenario = self._simulation.scenario
        life = f"{chr(ord('a') + term - 1)}"
        return Settings(
            "simulated",
            term,
            tuple(f"{place:04d}-{life}" for place in range(scenario.ranks)),
            scenario.minimum,
            scenario.workload_policy(),
            scenario.timeouts,
            ranks_per_replica=scenario.ranks_per_replica,
            skip_poison=scenario.skip_poison,
            recovery=scenario.recovery_policy(),
            spares=scenario.spares,
            replaces=scenario.replaces,
            lives=life,
            replacement=scenario.returns,
            quarantine=scenario.quarantine,
            cadences={CORRUPTION: scenario.checks},
        )

"""The real machine and the real ledger of every rank in virtual time, under everything that a hostile world can do.

One seed is one run and always the same one. Connections are in order, as TCP is, and nothing else is: the control
thread of a rank may run between any two moves of its training thread. Checks look on all the while.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

from ....actors.messages import Open
from ...machine import events
from ...machine.reporting import reported
from ...machine.state import State
from . import ending
from .chance import Chance
from .checkers import Checks, Violation
from .clock import Clock
from .cluster import Cluster
from .controllers import Controller
from .corruption import Corruption
from .diary import Diary
from .fabric import Fabric
from .faults import Faults
from .lives import Lives
from .loop import Loop
from .network import Network
from .ranks import Rank
from .scenario import draw
from .snapshots import Snapshots

# Virtual seconds after the last trouble by which a run must have ended: longer than all time-outs one after another.
PATIENCE_S = 1000.0
_STORY = 40


class Simulation:
    """One run from one seed.

    Args:
        seed: of everything in it.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.scenario = draw(seed)
        self.chance = Chance(seed)
        self.clock = Clock()
        self.diary = Diary()
        self.loop = Loop(seed, self.scenario.steps)
        self.checks = Checks(self.loop, self.scenario.workload_policy().exact)
        self.network = Network(self.clock, self.chance, self.scenario.doubling)
        self.fabric = Fabric(self)
        self.cluster = Cluster(self)
        self.snapshots = Snapshots(self)
        self.corruption = Corruption(self)
        self.faults = Faults(self)
        self.ranks: dict[str, Rank] = {}
        self.lives = Lives(self)
        self._stirred: deque[str] = deque()
        self._calm_from = 0.0

    def run(self) -> State:
        """To the end.

        Raises:
            Violation: something happened that must never happen; it names the seed and tells the story.
        """
        try:
            self.lives.begin()
            self.faults.start()
            self._play()
            self.saw(str(self.controller.state.phase))
            ending.check(self)
        except Exception as error:
            story = "\n".join(self.diary.lines(_STORY))
            # What a rank or the machine refuses itself is found as well.
            check = error.check if isinstance(error, Violation) else f"the code itself ({type(error).__name__})"
            raise Violation(check, f"seed {self.seed} at {self.clock.now:.3f}: {check}: {error}\n{story}") from error
        return self.controller.state

    def _play(self) -> None:
        """One event after another; after each, the training threads for which something has changed."""
        clock, lives, ranks, stirred = self.clock, self.lives, self.ranks, self._stirred
        while not lives.newest.over:
            if clock.now > self._calm_from + PATIENCE_S:
                state = self.controller.state
                raise Violation("every run ends", f"still {state.phase}: {state.recovery}")
            clock.step()
            while stirred:
                ranks[stirred.popleft()].resume()

    def stir(self, name: str) -> None:
        """Something changed for this rank's training thread; it is looked at when this event is over."""
        self._stirred.append(name)

    @property
    def controller(self) -> Controller:
        """The one that holds the newest term."""
        return self.lives.newest

    def disturb(self, seconds: float) -> None:
        """Trouble lasts at least so long from now on."""
        self._calm_from = max(self._calm_from, self.clock.now + seconds)

    def note(self, text: str, *facts: Any) -> None:
        self.diary.note(self.clock.now, text, *facts)

    def saw(self, what: str) -> None:
        self.diary.saw(what)

    def hit(self, kind: str, point: str) -> None:
        self.diary.hits[kind, point] += 1

    def observe(self, controller: Controller, before: State, after: State, actions: Sequence[events.Action]) -> None:
        """A world was opened: check what it was made from, and note what kind of loss this was."""
        sends = (action.message for action in actions if isinstance(action, events.Send))
        opened = next((message for message in sends if isinstance(message, Open)), None)
        if before.world is None or after.recovery is None or opened is None or controller is not self.controller:
            return
        reports = reported(after, before.world)
        self.checks.planned(reports.values(), self.ranks)
        self.diary.seen["deathless"] += after.deathless > 0
        begun = {held.work for name, held in sorted(reports.items())
                 if held.position == opened.position and name in opened.world.incarnations}  # fmt: skip
        if opened.work is None:
            self.saw("nobody had begun")
        else:
            self.saw(f"opened in {opened.work.kind}")
            self.saw("some had begun" if None in begun else "all had begun")
        for what, there in (
            ("poison", opened.poison),
            ("shadows", opened.shadows),
            ("dropped microbatches", opened.dropped),
            ("leavers", opened.leaving),
            ("newcomers", any(source != name for name, source in opened.sources.items())),
            ("a saved state", opened.restore),
            ("evaluations begun anew", opened.sources and not opened.work and not opened.restore),
        ):
            if there:
                self.saw(f"opened with {what}")

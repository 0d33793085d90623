"""Controller lives on the local cluster, each in a process of its own that dies where it is told to."""

import asyncio
import json
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from everstep.actors.directory import FolderDirectory
from everstep.actors.messages import Finished, Joined, Open, Prepare, Release, Report
from everstep.orchestrator import journal
from everstep.orchestrator.controller import Controller
from everstep.orchestrator.lives import begin_life, end_life
from everstep.orchestrator.local_cluster import LocalCluster, context
from everstep.orchestrator.machine.events import Action, Event, Heard, Record, Reports, Send, StartRank
from everstep.orchestrator.plan import RunPlan
from everstep.orchestrator.tenure import Deposed, Tenure
from ray import cloudpickle

from .harness import Outcome, plan_of, read

cloudpickle.register_pickle_by_value(sys.modules[__name__])

DEADLINE_S = 60.0
DEPOSED = 3


def _heard(kind: type) -> Callable[["Doomed", Any], bool]:
    return lambda controller, it: isinstance(it, Heard) and isinstance(it.message, kind)


def _sent(kind: type) -> Callable[["Doomed", Any], bool]:
    return lambda controller, it: isinstance(it, Send) and isinstance(it.message, kind)


def _wrote(what: str) -> Callable[["Doomed", Any], bool]:
    return lambda controller, it: isinstance(it, Record) and it.what == what


def _in_recovery(then: Callable[["Doomed", Any], bool]) -> Callable[["Doomed", Any], bool]:
    return lambda controller, it: controller.machine.recovery is not None and then(controller, it)


# A controller dies right after the first event or action of its life for which this is true.
DOOMS: dict[str, Callable[["Doomed", Any], bool]] = {
    "a rank is up": _wrote("rank up"),
    "a step is taken": lambda controller, it: any(rank.position.step > 1 for rank in controller.machine.living),
    "more are asked for": lambda controller, it: isinstance(it, StartRank) and controller.machine.target == 3,
    "some are to leave": lambda controller, it: bool(controller.machine.leaving),
    "two go on": lambda controller, it: isinstance(it, Record) and it.what == "opened" and it.facts["world"] == 2,
    "a loss is noticed": _wrote("recovering"),
    "a verdict is written down": _wrote("verdict"),
    "one is shut out": _wrote("fenced"),
    "one is asked to report": _in_recovery(_sent(Prepare)),
    "one has reported": _in_recovery(lambda controller, it: isinstance(it, Reports) or _heard(Report)(controller, it)),
    "the next generation is written down": _in_recovery(_wrote("opened")),
    "one is told of it": _in_recovery(_sent(Open)),
    "one is in it": _in_recovery(_heard(Joined)),
    "all are in it": _in_recovery(lambda controller, it: "rebuilt" in controller.machine.recovery.stamps),
    "it has taken over": _wrote("taken over"),
    "one has finished": _heard(Finished),
    "the end is written down": lambda controller, it: isinstance(it, Record) and "ending" in it.facts,
    "one is let go": _sent(Release),
}


class Doomed(Controller):
    """Dies by SIGKILL as soon as its doom has come; before, it may be asked for another world."""

    doom = ""
    wanted = 0

    @property
    def machine(self) -> Any:
        return self._state

    def _handle(self, event: Event) -> None:
        super()._handle(event)
        if self.wanted and DOOMS["a step is taken"](self, event):
            wanted, self.wanted = self.wanted, 0
            assert self.scale(wanted) is None
        self._await_doom(event)

    def _carry_out(self, action: Action) -> None:
        super()._carry_out(action)
        self._await_doom(action)

    def _await_doom(self, it: object) -> None:
        if self.doom and DOOMS[self.doom](self, it):
            os.kill(os.getpid(), signal.SIGKILL)


def live(plan: RunPlan, directory: FolderDirectory, doom: str, wanted: int, outcome: str) -> None:
    """One life, in a process of its own."""
    cluster = LocalCluster(plan.program(), Tenure(directory))
    controller = begin_life(plan, cluster)
    controller.__class__ = Doomed
    controller.doom, controller.wanted = doom, wanted  # type: ignore[attr-defined]
    try:
        state = asyncio.run(controller.run())
        end_life(plan, cluster.tenure, state)
    except Deposed:
        os._exit(DEPOSED)
    Path(outcome).write_bytes(pickle.dumps((state, controller.events(), controller.leftovers)))
    os._exit(0)


class Lives:
    """A run whose controllers come and go; ends whatever is left of it when it is left.

    Args:
        folder: of the run.
        options: of the plan.
    """

    def __init__(self, folder: Path, **options: Any) -> None:
        self._folder = folder
        self.plan = plan_of(folder, kept=True, **options)
        self.directory = FolderDirectory(str(folder / "terms"))
        self.processes: list[ForkServerProcess] = []

    def __enter__(self) -> "Lives":
        return self

    def __exit__(self, *what: object) -> None:
        for process in self.processes:
            if process.is_alive():
                process.kill()
            process.join()
        for pid in self.pids():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def begin(self, doom: str = "", wanted: int = 0) -> ForkServerProcess:
        """Start a controller, which is soon asked for so many replicas if that is not 0."""
        # The process cannot import the tests.
        life = cloudpickle.dumps(partial(live, self.plan, self.directory, doom, wanted, str(self._folder / "outcome")))
        code = f"from ray import cloudpickle\ncloudpickle.loads({life!r})()"
        process: ForkServerProcess = context().Process(target=exec, args=(code,))
        process.start()
        self.processes.append(process)
        return process

    def dies(self, doom: str, wanted: int = 0) -> None:
        """Start a controller, and wait until its doom has come."""
        self.await_doom(self.begin(doom, wanted))

    @staticmethod
    def await_doom(process: ForkServerProcess) -> None:
        """Until a controller has died as it was to."""
        process.join(DEADLINE_S)
        assert process.exitcode == -signal.SIGKILL, f"exit code {process.exitcode}: its doom has not come"

    def ends(self, process: ForkServerProcess | None = None) -> Outcome:
        """Start a controller, if none is given, and wait for the end of the run."""
        process = process or self.begin()
        process.join(DEADLINE_S)
        assert process.exitcode == 0, process.exitcode
        return read(Outcome(*pickle.loads((self._folder / "outcome").read_bytes())), self._folder)

    def pids(self) -> list[int]:
        """Of all ranks that have begun to train."""
        return [int(path.stem) for path in self._folder.glob("*.log")]

    def adopted(self) -> bool:
        """Whether the newest controller goes on with what an earlier one began."""
        return any(entry["what"] == "adopted" for entry in journal.read(Path(self.plan.folder or "")))

    def worlds(self) -> list[int]:
        """How many ranks there were in each generation that was opened, or found by a later controller."""
        folder = Path(self.plan.folder or "")
        entries = journal.read(folder) if (folder / "journal").exists() else ()
        return [entry["world"] for entry in entries if entry["what"] in ("opened", "adopted")]

    def told_to_leave(self) -> bool:
        """Whether those who are to leave were told, or will be with the generation that is opened next."""
        entries = journal.read(Path(self.plan.folder or ""))
        leaving = [entry["leaving"] for entry in entries if entry.get("leaving")]
        return bool(leaving) and all(leaving[-1].values())

    def await_step(self, step: int) -> None:
        """Until every rank has applied this step, whether there is a controller or not."""

        def there() -> bool:
            # One look: where no rank had begun yet, every rank had applied the step.
            applied = self.applied()
            return bool(applied) and all(step in steps for steps in applied.values())

        self.until(there)

    def applied(self) -> dict[str, set[int]]:
        """Steps by rank."""
        lines = {path.stem: path.read_text().splitlines() for path in self._folder.glob("*.jsonl")}
        events = {name: map(json.loads, held) for name, held in lines.items()}
        return {name: {e["step"] for e in held if e["event"] == "applied"} for name, held in events.items()}

    @staticmethod
    def until(condition: Callable[[], object]) -> None:
        """Poll with a deadline: the condition lies in other processes."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, "it did not come true in time"
            time.sleep(0.005)

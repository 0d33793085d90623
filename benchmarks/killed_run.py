"""One run of the example, undisturbed or with one of its ranks killed from outside at a random moment."""

import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import everstep
from everstep.benchmarks.timeline import RankTrace, read_traces
from everstep.conf.run import load
from everstep.orchestrator import journal
from everstep.orchestrator.load import load_function
from everstep.orchestrator.trainer import ElasticTrainer
from everstep.orchestrator.view import MemberView, RunState

EXAMPLE = Path(everstep.__file__).parent / "examples" / "gpt_bytes.yaml"
STEPS = 6
# The kill falls into one of these steps; the steps after them show what an undisturbed one costs the survivors.
KILLED_STEPS = range(2, 4)
_POLL_S = 0.01


@dataclass(frozen=True)
class Kill:
    """When ranks were killed, on the clock of the traces and on that of the journal, in seconds."""

    incarnations: tuple[str, ...]
    at: float
    wall: float


@dataclass(frozen=True)
class KilledRun:
    """What a run left behind; ``kill`` is None for an undisturbed one."""

    metrics: dict[str, Any]
    traces: dict[str, RankTrace]
    journal: Sequence[Mapping[str, Any]]
    kill: Kill | None

    @property
    def survivors(self) -> list[RankTrace]:
        """What the ranks did that went through to the end."""
        return [trace for name, trace in self.traces.items() if self.kill is None or name not in self.kill.incarnations]


@dataclass(frozen=True)
class Blow:
    """Whom a kill hits.

    Attributes:
        ranks: their incarnations.
        pids: every process that is killed.
    """

    ranks: tuple[str, ...]
    pids: tuple[int, ...]


def one_rank(state: RunState, rng: random.Random) -> Blow:
    """Any member."""
    member = rng.choice(_members(state))
    return Blow((member.incarnation,), (member.pid,))


def every_rank(state: RunState, rng: random.Random) -> Blow:
    """All ranks there are."""
    return Blow(tuple(held.incarnation for held in state.members), tuple(held.pid for held in state.members))


@dataclass
class Killer:
    """Follows a run from outside and kills some of its ranks.

    Args:
        traces: folder that the ranks trace to.
        step_s: how long a step takes.
        rng: chooses the ranks and the moment.
        choose: whom it hits.
        spares: that must stand by before.
    """

    traces: Path
    step_s: float
    rng: random.Random
    choose: Callable[[RunState, random.Random], Blow] = one_rank
    spares: int = 0
    kill: Kill | None = None
    _state: RunState | None = None
    _over: threading.Event = field(default_factory=threading.Event)

    def observe(self, state: RunState) -> None:
        """Called by the driver with every look at the run."""
        self._state = state

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Kills while the block runs."""
        thread = threading.Thread(target=self._strike, name="killer", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _strike(self) -> None:
        # A step that has begun, and a moment in it: how long steps take may have been measured on a busier machine.
        step, later = self.rng.choice(KILLED_STEPS), self.rng.uniform(0, self.step_s)
        while not self._begun(step):
            # Ended by ``at_work`` if the run never gets there.
            if self._over.wait(_POLL_S):
                return
        time.sleep(later)
        assert self._state is not None
        blow = self.choose(self._state, self.rng)
        self.kill = Kill(blow.ranks, time.monotonic(), time.time())
        for pid in blow.pids:
            # What ends with a raylet may be gone already.
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _begun(self, step: int) -> bool:
        if self._state is None or self._state.step < step - 1 or self._state.parked < self.spares:
            return False
        traces, members = read_traces(self.traces), _members(self._state)
        there = [traces.get(member.incarnation) for member in members]
        return bool(there) and all(trace is not None and step - 1 in trace.applied for trace in there)


def _members(state: RunState) -> list[MemberView]:
    return [member for member in state.members if member.replica is not None]


def run_example(
    name: str,
    seed: int,
    cluster: str,
    strike: tuple[float, random.Random] | None = None,
    overrides: Sequence[str] = (),
    choose: Callable[[RunState, random.Random], Blow] = one_rank,
    spares: int = 0,
) -> KilledRun:
    """Train the example, on four ranks if ``overrides`` of its file say nothing else.

    Args:
        strike: for a kill, the seconds of a step and what chooses rank and moment.
        choose: whom it hits.
        spares: that the run has beside its ranks, and that stand by before the kill.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        run_file = load(
            EXAMPLE,
            [
                f"name={name}",
                f"config.steps={STEPS}",
                f"elastic.seed={seed}",
                "elastic.chaos=[]",
                f"cluster={cluster}",
                f"storage_path={folder}",
                f"elastic.spares={spares}",
                *overrides,
            ],
        )
        trainer = ElasticTrainer.from_run_file(run_file, load_function(run_file.train, run_file.folder))
        traces = folder / "traces"
        traces.mkdir()
        os.environ["EVERSTEP_TRACE"] = str(traces)
        kill = None
        if strike is None:
            result = trainer.fit()
        else:
            killer = Killer(traces, *strike, choose, spares)
            with killer.at_work():
                result = trainer.fit(on_state=killer.observe)
            kill = killer.kill
            if kill is None:
                raise RuntimeError(f"run {name} ended before its rank could be killed")
        return KilledRun(dict(result.metrics or {}), read_traces(traces), journal.read(folder / name), kill)

"""One run of the example, undisturbed or with some of its ranks killed from outside at random moments."""

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
# The kill falls into one of these steps, counted from the one in which all were there; those after them show what an
# undisturbed one costs.
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
    """What a run left behind; an undisturbed one has no kills."""

    metrics: dict[str, Any]
    traces: dict[str, RankTrace]
    journal: Sequence[Mapping[str, Any]]
    kills: Sequence[Kill] = ()

    @property
    def survivors(self) -> list[RankTrace]:
        """What the ranks did that went through to the end."""
        return self.left(len(self.kills))

    @property
    def at_the_end(self) -> list[RankTrace]:
        """What those did who took the last step."""
        last = max(step for trace in self.survivors for step in trace.decided)
        return [trace for trace in self.survivors if last in trace.decided]

    def left(self, kills: int) -> list[RankTrace]:
        """What those did whom none of the first so many kills has hit."""
        hit = {name for kill in self.kills[:kills] for name in kill.incarnations}
        return [trace for name, trace in self.traces.items() if name not in hit]


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


@dataclass(frozen=True)
class Manner:
    """Of killing.

    Attributes:
        choose: whom one kill hits.
        kills: how many there are in a run, one after the other.
        spares: that the run has, and that stand by before the first kill.
        spent: how many of them each kill takes, for good.
    """

    choose: Callable[[RunState, random.Random], Blow] = one_rank
    kills: int = 1
    spares: int = 0
    spent: int = 0


@dataclass(frozen=True)
class Strike:
    """What is done to a run.

    Attributes:
        step_s: how long its steps take.
        rng: chooses the ranks and the moments.
    """

    step_s: float
    rng: random.Random
    manner: Manner = Manner()


@dataclass
class Killer:
    """Follows a run from outside and kills some of its ranks.

    Args:
        traces: folder that the ranks trace to.
        strike: what is to be killed.
    """

    traces: Path
    strike: Strike
    kills: list[Kill] = field(default_factory=list)
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
        strike, manner, last = self.strike, self.strike.manner, 0
        for number in range(manner.kills):
            # A step that has begun, and a moment in it: steps may have been measured on a busier machine.
            step, later = last + strike.rng.choice(KILLED_STEPS), strike.rng.uniform(0, strike.step_s)
            spares = manner.spares - number * manner.spent
            while not self._begun(step, spares):
                # Ended by ``at_work`` if the run never gets there.
                if self._over.wait(_POLL_S):
                    return
            time.sleep(later)
            assert self._state is not None
            blow, last = manner.choose(self._state, strike.rng), self._state.step + 1
            self.kills.append(Kill(blow.ranks, time.monotonic(), time.time()))
            for pid in blow.pids:
                # What ends with a raylet may be gone already.
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _begun(self, step: int, spares: int) -> bool:
        if self._state is None or self._state.step < step - 1 or self._state.parked < spares:
            return False
        hit = {name for kill in self.kills for name in kill.incarnations}
        traces, members = read_traces(self.traces), _members(self._state)
        there = [traces.get(member.incarnation) for member in members if member.incarnation not in hit]
        return len(there) == len(members) > 0 and all(trace and step - 1 in trace.applied for trace in there)


def _members(state: RunState) -> list[MemberView]:
    return [member for member in state.members if member.replica is not None]


def run_example(
    name: str, seed: int, cluster: str, strike: Strike | None = None, overrides: Sequence[str] = ()
) -> KilledRun:
    """Train the example, on four ranks if ``overrides`` of its file say nothing else.

    Raises:
        RuntimeError: it ended before all kills.
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
                "elastic.snapshot_every=0",
                f"cluster={cluster}",
                f"storage_path={folder}",
                f"elastic.spares={strike.manner.spares if strike else 0}",
                *overrides,
            ],
        )
        trainer = ElasticTrainer.from_run_file(run_file, load_function(run_file.train, run_file.folder))
        traces = folder / "traces"
        traces.mkdir()
        os.environ["EVERSTEP_TRACE"] = str(traces)
        kills: list[Kill] = []
        if strike is None:
            result = trainer.fit()
        else:
            killer = Killer(traces, strike)
            with killer.at_work():
                result = trainer.fit(on_state=killer.observe)
            kills = killer.kills
            if len(kills) < strike.manner.kills:
                raise RuntimeError(f"run {name} ended after {len(kills)} of {strike.manner.kills} kills")
        return KilledRun(dict(result.metrics or {}), read_traces(traces), journal.read(folder / name), kills)

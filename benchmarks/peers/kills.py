"""Start a peer's processes, kill ranks at random moments, and time how long the training stands still."""

import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import psutil

from .common import PeerRecovery
from .progress import Mark, ProgressLog
from .workload import MICROBATCHES, RANKS

STEPS_BEFORE_KILL = 3
DEADLINE_S = 180.0
_END_S = 15.0
_POLL_S = 0.05


class Jobs:
    """The processes of one measurement, with their output in the working folder."""

    def __init__(self, work: Path) -> None:
        self._work = work
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, *command: str, **environment: str) -> None:
        """Start a program."""
        variables = os.environ | {"OMP_NUM_THREADS": "1"} | environment
        with open(self._work / "output.txt", "ab") as output:
            self._processes.append(subprocess.Popen(command, env=variables, stdout=output, stderr=output))

    def start_module(self, *arguments: str, **environment: str) -> None:
        """Start a module with this Python."""
        self.start(sys.executable, "-m", *arguments, **environment)

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Return once the condition holds; a process that ends unasked and the deadline are errors."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            ended = [one.pid for one in self._processes if one.poll() not in (None, -signal.SIGKILL)]
            if ended or time.monotonic() > deadline:
                reason = f"process {ended[0]} ended" if ended else f"{DEADLINE_S:.0f} s have passed"
                tail = (self._work / "output.txt").read_text(errors="replace")[-4000:]
                raise RuntimeError(f"{reason} while waiting for {what}; the end of the output:\n{tail}")
            time.sleep(_POLL_S)

    def end(self) -> None:
        """End all processes and their descendants, the stubborn ones by force."""
        family = [one for process in self._processes for one in _descendants(process.pid)]
        for one in family:
            _signal(one, signal.SIGTERM)
        _, stubborn = psutil.wait_procs(family, timeout=_END_S)
        for one in stubborn:
            _signal(one, signal.SIGKILL)
        psutil.wait_procs(stubborn, timeout=_END_S)
        for process in self._processes:
            process.wait(timeout=_END_S)


@contextmanager
def jobs(work: Path) -> Iterator[Jobs]:
    """Jobs that do not outlive the block."""
    started = Jobs(work)
    try:
        yield started
    finally:
        started.end()


def recoveries(
    name: str,
    work: Path,
    running: Jobs,
    kills: int,
    rng: random.Random,
    replace: Callable[[int], None] = lambda rank: None,
) -> list[PeerRecovery]:
    """Kill a random rank ``kills`` times, at a random moment of a step, whenever all ranks are at work.

    Args:
        name: the peer, as shown.
        work: the folder of the ranks' progress.
        running: the peer's processes.
        kills: how many ranks to kill, one after another.
        rng: chooses ranks and moments.
        replace: starts a new process for a rank, for peers that do not do so themselves.
    """
    log = ProgressLog(work)
    measured = []
    since = 0.0
    for _ in range(kills):
        running.wait(lambda: _all_at_work(log.read(), since), "all ranks to train")  # noqa: B023
        recovery, victim = _kill_one(name, log, running, rng)
        measured.append(recovery)
        replace(victim)
        since = time.monotonic()
    return measured


def _all_at_work(marks: list[Mark], since: float) -> bool:
    """Whether the latest steps were completed by all ranks together, in one world."""
    done = [mark for mark in marks if mark.event == "done" and mark.time > since][-STEPS_BEFORE_KILL * RANKS :]
    ranks = [mark.rank for mark in done]
    whole = all(ranks.count(rank) == STEPS_BEFORE_KILL for rank in range(RANKS))
    return whole and len({mark.world for mark in done}) == 1


def _kill_one(name: str, log: ProgressLog, running: Jobs, rng: random.Random) -> tuple[PeerRecovery, int]:
    victim = rng.randrange(RANKS)
    before = log.read()
    time.sleep(rng.uniform(0, _step_seconds(before)))
    pid = next(mark.pid for mark in reversed(before) if mark.rank == victim)
    killed_at = time.monotonic()
    os.kill(pid, signal.SIGKILL)

    old = [mark for mark in log.read() if mark.event == "done" and mark.time <= killed_at]
    interrupted, world = 1 + max(mark.step for mark in old), old[-1].world

    def completed(marks: list[Mark]) -> Iterator[Mark]:
        late = (mark for mark in marks if mark.time > killed_at)
        return (m for m in late if m.event == "done" and m.step >= interrupted and m.world != world)

    running.wait(lambda: any(completed(log.read())), f"step {interrupted} after the kill of rank {victim}")
    marks = log.read()
    end = next(completed(marks))
    # Survivors may have completed the interrupted step before they noticed; going back behind it counts.
    reached = 1 + max(mark.step for mark in marks if mark.event == "done" and mark.world == world)
    resumed = min(mark.step for mark in marks if mark.event == "begin" and killed_at < mark.time < end.time)
    return (
        PeerRecovery(
            name=name,
            recovery_ms=1000 * (end.time - killed_at),
            steps_redone=max(0, reached - resumed),
            microbatches_dropped=MICROBATCHES - end.microbatches,
        ),
        victim,
    )


def _step_seconds(marks: list[Mark]) -> float:
    """The usual time from one completed step of rank 0 to the next."""
    times = [mark.time for mark in marks if mark.event == "done" and mark.rank == 0]
    return statistics.median(later - sooner for sooner, later in pairwise(times))


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        parent = psutil.Process(pid)
        return [*parent.children(recursive=True), parent]
    except psutil.NoSuchProcess:
        return []


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return

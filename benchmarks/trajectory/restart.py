"""Checkpoint-restart: a job that is killed as a whole when it loses a rank, and begins again from its last checkpoint.

All ranks of a life are new processes, which import, build and load as those of a real job do.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from itertools import count
from pathlib import Path

from everstep.benchmarks.timeline import read_traces
from everstep.benchmarks.trajectory import cpu_time
from everstep.benchmarks.trajectory.course import Course, Outcome, computed
from everstep.benchmarks.trajectory.restart_rank import LOSSES, STARTS, TRACES, Life

_RANK = "everstep.benchmarks.trajectory.restart_rank"
_OUTPUT = "output.txt"


def run(course: Course, checkpoint_every: int) -> Outcome:
    """Train to the end, life after life.

    Raises:
        RuntimeError: a process failed on its own, or a planned fault did not fire.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / TRACES).mkdir()
        replicas = list(range(course.ranks))
        for number in count():
            life = Life(course.as_dict(), name, number, tuple(replicas), checkpoint_every, os.getpid())
            lost = _live(life)
            if not lost:
                break
            replicas = [replica for replica in replicas if replica not in lost]
        if len(replicas) != course.ranks - len(course.faults):
            raise RuntimeError(f"{len(replicas)} of {course.ranks} ranks are left after {len(course.faults)} losses")
        # Steps that were done again have several lines, the last one counts.
        losses = {line["step"]: line["loss"] for line in _lines(folder / LOSSES)}
        return Outcome(
            losses=tuple(losses[step] for step in range(course.steps)),
            summed=course.steps * course.microbatches,
            computed=computed(list(read_traces(folder / TRACES).values())),
            cpu_s=cpu_time.since_noted(folder, os.getpid()),
            starts_cpu_s=sum(line["cpu_s"] for line in _lines(folder / STARTS)),
        )


def _live(life: Life) -> list[int]:
    """One life to its end; returns the replicas that were lost, none if the training is over."""
    output = Path(life.folder, _OUTPUT)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    processes = {}
    with output.open("ab") as file:
        for replica in life.replicas:
            command = (sys.executable, "-m", _RANK, str(replica), json.dumps(asdict(life)))
            processes[replica] = subprocess.Popen(command, env=environment, stdout=file, stderr=file)
    with ThreadPoolExecutor(len(processes)) as threads:
        # Ranks end by themselves: a collective whose peer is gone fails, at the latest after torch's own time-out.
        for ending in as_completed([threads.submit(process.wait) for process in processes.values()]):
            if ending.result():
                for process in processes.values():
                    process.terminate()
    codes = {replica: process.returncode for replica, process in processes.items()}
    lost = [replica for replica, code in codes.items() if code == -signal.SIGKILL]
    if any(codes.values()) and not lost:
        tail = output.read_text(errors="replace")[-4000:]
        raise RuntimeError(f"ranks ended with {codes} though none was killed; the end of their output:\n{tail}")
    return lost


def _lines(path: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []

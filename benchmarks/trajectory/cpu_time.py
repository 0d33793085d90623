"""CPU time of a family of processes: the ranks of every arm share the same cores, so wall time would not tell."""

import contextlib
from pathlib import Path

import psutil


def spent(pid: int) -> float:
    """Seconds, user and system, of a process, its living descendants, and all of theirs that ended and were reaped."""
    root = psutil.Process(pid)
    seconds = 0.0
    for process in (root, *root.children(recursive=True)):
        # One that ends meanwhile counts with its parent the next time.
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            seconds += times.user + times.system + times.children_user + times.children_system
    return seconds


def note(folder: Path, pid: int) -> None:
    """Write down what a family has spent so far."""
    (folder / "cpu_s").write_text(str(spent(pid)))


def since_noted(folder: Path, pid: int) -> float:
    """What it has spent since."""
    return spent(pid) - float((folder / "cpu_s").read_text())

"""Runs that have been trained, a line of JSON each: what is there is not trained again."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from everstep.benchmarks.instability.plan import Run
from everstep.benchmarks.instability.training import Course, Trained
from everstep.monitors.reading import Reading


def load(path: Path, course: Course) -> dict[Run, Trained]:
    """All whole lines; a last one that was cut is left out.

    Raises:
        ValueError: for a line of another course.
    """
    if not path.exists():
        return {}
    held = {}
    for line in path.read_text(encoding="utf-8").split("\n")[:-1]:
        saved = json.loads(line)
        if saved["course"] != digest(course):
            raise ValueError(f"{path} holds runs of another course; give another file with --runs")
        held[Run(**saved["run"])] = _trained(saved)
    return held


def append(path: Path, course: Course, run: Run, trained: Trained) -> None:
    """One more line, after the last whole one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = path.read_bytes().rpartition(b"\n") if path.exists() else (b"", b"", b"")
    if whole[2]:
        path.write_bytes(whole[0] + whole[1])
    line = {
        "course": digest(course),
        "run": dataclasses.asdict(run),
        "losses": trained.losses,
        "readings": [[one.monitor, one.step, one.layer, one.head, dict(one.numbers)] for one in trained.readings],
    }
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def digest(course: Course) -> str:
    """Tells courses apart."""
    return hashlib.sha256(json.dumps(dataclasses.asdict(course), sort_keys=True).encode()).hexdigest()[:16]


def _trained(saved: Mapping[str, Any]) -> Trained:
    return Trained(tuple(saved["losses"]), tuple(Reading(*one) for one in saved["readings"]))

"""The first command of a scenario: what world it is."""

import re
from collections.abc import Callable

from everstep.conf.elastic import Timeouts
from everstep.orchestrator.machine.settings import Settings
from everstep.policies.recovery import recovery_policy
from everstep.policies.workload import workload_policy

from .stage import Advance, Stage, name

_CLAUSES: dict[str, tuple[str, Callable[[str], object]]] = {
    "replicas": (r"(\d+) replicas?", int),
    "size": (r"(\d+) ranks per replica", int),
    "spares": (r"(\d+) spares?", int),
    "microbatches": (r"(\d+) microbatches", int),
    "steps": (r"(\d+) steps?", int),
    "minimum": (r"at least (\d+)", int),
    "patience": (r"patience (\d+) s", float),
    "recovery": (r"recovery (\w+)", str),
    "workload": (r"workload (\w+)", str),
    "replaces": (r"(lost ranks are replaced)", bool),
    "skips": (r"(poison is skipped)", bool),
}


def stage_of(text: str, machine: Advance) -> Stage:
    """The first command: ``world: 4 replicas, 1 spare, 8 microbatches, recovery swap``."""
    if not text.startswith("world: "):
        raise ValueError(f"a scenario begins with 'world: ...', not with {text!r}")
    held: dict[str, object] = {}
    for part in text.removeprefix("world: ").split(", "):
        found = [(key, match[1]) for key, (form, _) in _CLAUSES.items() if (match := re.fullmatch(form, part))]
        if not found:
            raise ValueError(f"unknown about a world: {part!r}; known are: {', '.join(_CLAUSES)}")
        ((key, value),) = found
        held[key] = _CLAUSES[key][1](value)
    usual = {"size": 1, "spares": 0, "microbatches": 8, "steps": 5, "minimum": 1, "patience": 0.0}
    usual |= {"recovery": "shrink", "workload": "balanced", "replaces": False, "skips": False}
    if "replicas" not in held:
        raise ValueError("a world has replicas: 'world: 4 replicas, ...'")
    world = {**usual, **held}
    settings = Settings(
        "scenario",
        1,
        tuple(map(name, range(world["replicas"] * world["size"] + world["spares"]))),
        world["minimum"],
        workload_policy(world["workload"], world["replicas"]),
        Timeouts(),
        ranks_per_replica=world["size"],
        skip_poison=world["skips"],
        recovery=recovery_policy(world["recovery"], patience=world["patience"]),
        spares=world["spares"],
        replaces=world["replaces"],
        lives="a",
    )
    return Stage(settings, world["microbatches"], world["steps"], machine)

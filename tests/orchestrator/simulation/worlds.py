"""Small worlds to simulate."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from everstep.conf.simulation import (
    Batch,
    Failures,
    Fleet,
    OnSteps,
    PolicyKeys,
    SimulatedCosts,
    Simulation,
)
from everstep.orchestrator.simulation.engine import Engine
from everstep.orchestrator.simulation.outcome import Outcome

# Four replicas with four microbatches each: an undisturbed step takes 4.5 s.
STEP_S = 4.5


def world(
    *,
    costs: dict[str, float] | None = None,
    policies: dict[str, Any] | None = None,
    failures: dict[str, Any] | None = None,
    steps: int | None = 20,
    seconds: float | None = None,
    gpu_hours: float | None = None,
    seed: int = 0,
    **fleet: Any,
) -> Simulation:
    """Four replicas of one rank, 16 microbatches of 1 s, half a second beside them."""
    return Simulation(
        fleet=Fleet(**{"replicas": 4, **fleet}),
        batch=Batch(microbatches=16, tokens_per_microbatch=100),
        costs=SimulatedCosts(**{"microbatch": 1.0, "step": 0.5, "detect": 0.25, "rebuild": 0.125, **(costs or {})}),
        policies=PolicyKeys(**{"recovery": "shrink", **(policies or {})}),
        failures=Failures(**(failures or {})),
        steps=steps,
        seconds=seconds,
        gpu_hours=gpu_hours,
        seed=seed,
    )


def one_loss(at: float) -> dict[str, Any]:
    """Somebody dies at this place; 2.5 is the middle of step 2."""
    return {"on_steps": OnSteps(first=at, count=1)}


def play(simulation: Simulation) -> Outcome:
    """To its end; every second must have been spent on something."""
    outcome = Engine(simulation).run()
    assert sum(outcome.seconds.values()) == pytest.approx(outcome.elapsed)
    return outcome


def traced(folder: Path, *lines: str, columns: str = "time,what,target", **more: Any) -> Simulation:
    """A world in which happens what these lines say."""
    (folder / "trace.csv").write_text("\n".join((columns, *lines)))
    return replace(world(**more, failures={"trace": "trace.csv"}), folder=folder)

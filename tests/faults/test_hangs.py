"""A rank that lives and does not move is named and replaced, and the run ends as if nothing had happened."""

import sys
from pathlib import Path
from typing import Any

import pytest
from everstep.conf.elastic import ElasticConfig
from everstep.conf.scaling import Scaling
from everstep.orchestrator.local_cluster import LocalCluster
from everstep.orchestrator.plan import RunPlan
from everstep.orchestrator.view import Phase
from ray import cloudpickle

from .harness import QUICK, Outcome, drive

# Ranks are other processes and cannot import the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

STUCK_STEP, STEPS, RANKS = 2, 4, 3


def train(ctx: Any) -> None:
    """Replica 1 gets stuck in one step, in the way that the configuration says, while its control thread goes on."""
    import os
    import signal
    import threading

    import everstep
    import torch

    class Samples(torch.utils.data.Dataset):
        stuck = False

        def __len__(self) -> int:
            return 40

        def __getitem__(self, item: int) -> torch.Tensor:
            if self.stuck:
                threading.Event().wait()
            return torch.full((4,), item / 40)

    samples = Samples()
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = everstep.Microbatches(samples, size=2)
    run = ctx.begin(model=model, optimizer=optimizer, data=data, steps=ctx.config["steps"])
    for step in run:
        hit = ctx.replica == 1 and step.number == ctx.config["step"]
        samples.stuck = hit and ctx.config["how"] == "data"
        for batch in step:
            if hit and ctx.config["how"] == "lock":
                lock = threading.Lock()
                with lock:
                    lock.acquire()
            if hit and ctx.config["how"] == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            step.backward(model(batch).square().mean())
        optimizer.step()
        optimizer.zero_grad()


def play(folder: Path, how: str) -> Outcome:
    folder.mkdir()
    elastic = ElasticConfig(
        microbatches_per_step=6, hang=1.0, replace=False, snapshot_every=0, timeouts=QUICK, reduction="exact"
    )
    config = {"how": how, "step": STUCK_STEP, "steps": STEPS}
    plan = RunPlan(
        run=folder.name, elastic=elastic, scaling=Scaling(1, RANKS), train=cloudpickle.dumps(train), config=config
    )
    return drive(plan, LocalCluster(plan.program()), folder)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    outcome = play(tmp_path_factory.mktemp("hangs") / "undisturbed", "not")
    assert outcome.state.phase is Phase.SUCCEEDED, outcome.state.error
    assert not [event for event in outcome.journal if event["what"] == "standstill"]
    return outcome


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("lock", f"is dead-locked in forward and backward at microbatch 2 of step {STUCK_STEP}"),
        ("data", f"is stuck in its data loader at microbatch 2 of step {STUCK_STEP}"),
    ],
)
def test_stuck_but_alive(tmp_path: Path, undisturbed: Outcome, how: str, said: str) -> None:
    outcome = play(tmp_path / how, how)
    state = outcome.state
    assert state.phase is Phase.SUCCEEDED, state.error
    assert outcome.weights == undisturbed.weights
    assert outcome.leftovers == []
    assert str(state.first_cause).startswith("rank 1.0: " + said)
    assert "2 of 3 ranks wait for it" in str(state.first_cause)
    (event,) = [event for event in outcome.journal if event["what"] == "standstill"]
    assert event["ranks"] == ["rank 1.0"]
    (verdict,) = state.verdicts
    assert (verdict.kind, verdict.outcome, verdict.who) == ("hang", "attributed", ("rank 1.0",))
    assert verdict.reason.startswith(said)
    assert set(verdict.evidence) == {f"rank {replica}.0" for replica in range(RANKS)}
    assert verdict.done == "it is shut out"
    assert len(state.recoveries) == 1


def test_stopped(tmp_path: Path, undisturbed: Outcome) -> None:
    """Its control thread is stopped as well, so its silence is heard first."""
    outcome = play(tmp_path / "stop", "stop")
    assert outcome.state.phase is Phase.SUCCEEDED, outcome.state.error
    assert outcome.weights == undisturbed.weights
    assert "rank 1.0: no sign of life" in str(outcome.state.first_cause)

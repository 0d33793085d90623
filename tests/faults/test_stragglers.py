"""A replica that is slow is named, owes less, or leaves: the weights are those of the undisturbed run all the same."""

import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from everstep.conf.elastic import ElasticConfig
from everstep.conf.scaling import Scaling
from everstep.orchestrator.controller import Controller
from everstep.orchestrator.local_cluster import LocalCluster
from everstep.orchestrator.plan import RunPlan
from everstep.orchestrator.view import Phase, RunState
from ray import cloudpickle

from .harness import QUICK, Outcome, drive, until

# Ranks are other processes and cannot import the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

STEPS, MICROBATCHES, RANKS, SLOW = 120, 12, 4, 2


def train(ctx: Any) -> None:
    """Microbatches take as long as a sleep, on one replica four times as long, until the file ``over`` is there."""
    import time
    from pathlib import Path

    import everstep
    import torch

    over = Path(ctx.config["folder"], "over")

    def work(part: str) -> None:
        how = ctx.config["how"]
        if how and not over.exists():
            time.sleep(0.04 if ctx.replica == ctx.config["slow"] and part == how else 0.01)

    class Samples(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 40

        def __getitem__(self, item: int) -> torch.Tensor:
            work("loading data")
            return torch.full((4,), item / 40)

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = everstep.Microbatches(Samples(), size=1)
    for step in ctx.begin(model=model, optimizer=optimizer, data=data, steps=ctx.config["steps"]):
        for batch in step:
            work("computing")
            step.backward(model(batch).square().mean())
        optimizer.step()
        optimizer.zero_grad()


def play(folder: Path, how: str = "", **elastic: Any) -> Outcome:
    """Train until the slow replica was named, and answered, and then to the end."""
    folder.mkdir()
    plan = RunPlan(
        run=folder.name,
        elastic=ElasticConfig(microbatches_per_step=MICROBATCHES, snapshot_every=0, timeouts=QUICK, **elastic),
        scaling=Scaling(1, RANKS),
        train=cloudpickle.dumps(train),
        config={"folder": str(folder), "how": how, "slow": SLOW, "steps": STEPS},
        trace=str(folder),
    )

    def answered(state: RunState) -> bool:
        gone = all(member.replica != SLOW for member in state.members)
        return (
            bool(state.verdicts)
            and (
                {"observe": True, "weigh": state.generation == "1.2" and state.reason != "", "evict": gone}[
                    str(plan.elastic.stragglers)
                ]
            )
        )

    async def named(controller: Controller) -> None:
        await until(lambda: answered(controller.state()))
        (folder / "over").touch()

    return drive(plan, LocalCluster(plan.program()), folder, named if how else None)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    outcome = play(tmp_path_factory.mktemp("stragglers") / "undisturbed")
    assert outcome.state.phase is Phase.SUCCEEDED, outcome.state.error
    return outcome


def assert_no_failure(outcome: Outcome, undisturbed: Outcome, how: str) -> Mapping[str, Any]:
    """It is named with its times, and everything else is as if it had not been slow; its verdict."""
    state = outcome.state
    assert state.phase is Phase.SUCCEEDED, state.error
    assert outcome.weights == undisturbed.weights
    assert outcome.leftovers == []
    assert (state.recoveries, state.first_cause, state.warnings) == ((), None, ())
    computed = Counter(place for places in outcome.computed.values() for place in places)
    assert computed == Counter((step, index) for step in range(STEPS) for index in range(MICROBATCHES))
    verdict = next(event for event in outcome.journal if event.get("outcome") == "attributed")
    assert verdict["who"] == (f"rank {SLOW}.0",)
    assert f"rank {SLOW}.0 is slow at {how}" in str(verdict["reason"])
    times = verdict["evidence"][how]
    assert isinstance(times, Mapping)
    # The fault fired: sleeps of four times the length.
    assert times[f"rank {SLOW}.0"] > 0.04 > times["rank 0.0"]
    return verdict


@pytest.mark.parametrize("how", ["computing", "loading data"])
def test_named_and_left_alone(tmp_path: Path, undisturbed: Outcome, how: str) -> None:
    outcome = play(tmp_path / "observe", how)
    verdict = assert_no_failure(outcome, undisturbed, how)
    assert verdict["done"] == f"replica {SLOW} is slow, and observed: nothing else is wanted"
    assert outcome.state.generation == "1.1"


def test_it_owes_less(tmp_path: Path, undisturbed: Outcome) -> None:
    outcome = play(tmp_path / "weigh", "computing", stragglers="weigh")
    verdict = assert_no_failure(outcome, undisturbed, "computing")
    assert f"replica {SLOW} is slow, and owes less" in str(verdict["done"])
    (name,) = [name for name in outcome.decided if name.startswith(f"{SLOW:04d}")]
    shares = [len(indices) for indices in outcome.decided[name].values()]
    assert min(shares) < MICROBATCHES // RANKS


def test_it_leaves_for_a_spare(tmp_path: Path, undisturbed: Outcome) -> None:
    outcome = play(tmp_path / "evict", "computing", stragglers="evict", spares=1)
    verdict = assert_no_failure(outcome, undisturbed, "computing")
    assert f"replica {SLOW} is slow, and is let go" in str(verdict["done"])
    assert [event["seat"] for event in outcome.journal if event["what"] == "left"] == [f"{SLOW}.0"]
    assert outcome.state.metrics["world"] == RANKS

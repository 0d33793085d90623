"""A training that gets unstable is seen by its weights, goes back, and goes on as one that had known it by hand."""

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from everstep.conf.chaos import Fault, FaultPoint
from everstep.conf.elastic import ElasticConfig
from everstep.conf.remedy import OnInstability, Remedy
from everstep.conf.scaling import Scaling
from everstep.monitors.calibration import Calibrated, save
from everstep.monitors.envelope import Band, Rule
from everstep.orchestrator import journal
from everstep.orchestrator.controller import Controller
from everstep.orchestrator.local_cluster import LocalCluster
from everstep.orchestrator.plan import RunPlan
from everstep.orchestrator.records import json_lines
from everstep.orchestrator.view import Phase
from ray import cloudpickle

from .controllers import DOOMS, Lives
from .harness import QUICK, Outcome, drive, open_gate, until

# Ranks are other processes and cannot import the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

RANKS, MICROBATCHES, STEPS = 3, 6, 30
EVERY, LAG, ONSET = 4, 1, 13
# Looks end after 4, 8, 12, 16, 20 steps; those of 16 and 20 are ill, so the state after 12 steps is not verified.
HEALTHY = 8
GATE = 23
LAYER = "blocks.0.attention"
REMEDY = Remedy(skip_steps=2, learning_rate=0.5, switches={"rate": "sane"})
# Between the onset and the alarm, and after everybody has gone back.
DEATHS = (Fault(15, 1, point=FaultPoint.IN_BACKWARD), Fault(26, 2, point=FaultPoint.AFTER_VOTE))


def train(ctx: Any) -> None:
    """Its learning rate is far too large from one step on; or what follows from that is done by hand in time."""
    import time
    from pathlib import Path

    import everstep
    import torch
    from everstep.actors.rank.order import Epochs
    from everstep.examples.gpt import GPT, GPTConfig, next_token_loss

    config = ctx.config
    back = config["by_hand"]

    class Windows(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 50

        def __getitem__(self, item: int) -> torch.Tensor:
            return torch.randint(16, (9,), generator=torch.Generator().manual_seed(item))

    class Shifted(Windows):
        """Two steps are passed over."""

        def sample_order(self, seed: int, shuffle: bool) -> object:
            order, step = Epochs(len(self), seed, shuffle), config["microbatches"] * 2
            return lambda position: order(position + (2 * step if position >= back * step else 0))

    model = GPT(GPTConfig(vocab_size=16, block=8, layers=1, width=16, heads=2, dropout=0.1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = everstep.Microbatches(Windows() if back is None else Shifted(), size=2)
    run = ctx.begin(model=model, optimizer=optimizer, data=data, steps=config["steps"])
    for step in run:
        ill = step.number >= config["onset"] and back is None and ctx.switches.get("rate") != "sane"
        deadline = time.monotonic() + 60
        while ill and step.number == config["gate"] and not Path(config["folder"], f"gate {step.number}").exists():
            assert time.monotonic() < deadline, "nobody opened the gate"
            time.sleep(0.005)
        for windows in step:
            step.backward(next_token_loss(model, windows))
        rate = 0.5e-3 if back is not None and step.number >= back else 1e-3
        for group in optimizer.param_groups:
            group["lr"] = 50 * rate if ill else rate
        optimizer.step()


def plan_of(folder: Path, by_hand: int | None = None, chaos: tuple[Fault, ...] = (), **elastic: Any) -> RunPlan:
    folder.mkdir(parents=True, exist_ok=True)
    config = {"onset": ONSET, "gate": GATE, "steps": STEPS, "by_hand": by_hand, "microbatches": MICROBATCHES}
    settings: dict[str, Any] = {
        "monitor_every": EVERY,
        "monitor_lag": LAG,
        "snapshot_every": 0,
        "checkpoint_every": 4,
        "keep": 9,
        "check_every": 0,
        "replace": False,
        **elastic,
    }
    return RunPlan(
        run=folder.name,
        elastic=ElasticConfig(microbatches_per_step=MICROBATCHES, chaos=chaos, timeouts=QUICK, **settings),
        scaling=Scaling(1, RANKS),
        train=cloudpickle.dumps(train),
        config={**config, "folder": str(folder)},
        folder=str(folder / "kept"),
        trace=str(folder),
    )


def play(plan: RunPlan, during: Any = None) -> Outcome:
    outcome = drive(plan, LocalCluster(plan.program()), Path(plan.config["folder"]), during, plan.sinks())
    assert outcome.leftovers == []
    return outcome


def records(plan: RunPlan) -> list[tuple[int, float, dict[str, float]]]:
    """What a run has written of its steps."""
    held = json_lines.read(Path(plan.folder or "", json_lines.FILE))
    return [(one.step, one.loss, dict(one.lr)) for one in held]


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, RunPlan]:
    """One that knows beforehand."""
    plan = plan_of(tmp_path_factory.mktemp("stability") / "by_hand", HEALTHY)
    outcome = play(plan)
    assert outcome.state.phase is Phase.SUCCEEDED, outcome.state.error
    assert outcome.state.stability.startswith(f"watches every {EVERY} steps 2 heads of 1 layers; no alarm")
    return outcome, plan


@pytest.fixture(scope="module")
def envelope(by_hand: tuple[Outcome, RunPlan], tmp_path_factory: pytest.TempPathFactory) -> str:
    """Updates of a healthy run are a quarter of what is too much."""
    told = json_lines.read(Path(by_hand[1].folder or "", json_lines.FILE))
    ratios = [one.numbers.get("update_ratio", 0.0) for record in told for one in record.readings]
    path = tmp_path_factory.mktemp("envelope") / "envelope.json"
    bands = {(("baseline", LAYER, "update_ratio"), 0): Band(0.0, 4 * max(ratios))}
    save(path, Calibrated(Rule(persistence=2, bin=1000), bands))
    return str(path)


def on_the_way(events: Iterable[Mapping[str, object]]) -> bool:
    """Whether whoever was to go back was told where to."""
    said = [event["what"] for event in events]
    return "going back" not in said or "opened" in said[said.index("going back") :]


async def seen(controller: Controller, folder: Path) -> None:
    """The ranks stand at the gate, and what they have told was heard."""
    await until(lambda: any(verdict.kind == "stability" for verdict in controller.state().verdicts))
    await until(lambda: on_the_way(controller.events()))
    open_gate(folder, GATE)


def test_it_goes_back_and_on_as_if_it_had_known(
    by_hand: tuple[Outcome, RunPlan], envelope: str, tmp_path: Path
) -> None:
    plan = plan_of(tmp_path, chaos=DEATHS, envelope=envelope, on_instability=OnInstability.ROLLBACK, remedy=REMEDY)
    outcome = play(plan, lambda controller: seen(controller, tmp_path))
    state = outcome.state
    assert state.phase is Phase.SUCCEEDED, (state.error, state.traceback)
    assert len(state.faults_fired) == len(DEATHS)
    assert state.metrics["world"] == 1
    assert outcome.weights == by_hand[0].weights
    assert records(plan) == records(by_hand[1])
    (verdict,) = [one for one in state.verdicts if one.kind == "stability"]
    assert (verdict.outcome, verdict.step, verdict.evidence["since"]) == ("alarm", 20, 15)
    assert verdict.done == (
        f"everybody goes back to the state after {HEALTHY} steps; from step {HEALTHY} on: the data of 2 steps is "
        "passed over, learning rates times 0.5, rate is sane"
    )
    assert f"different from step {HEALTHY} on" in state.stability
    assert [event["to"] for event in outcome.journal if event["what"] == "going back"] == [HEALTHY]


@pytest.mark.parametrize("on", [OnInstability.OBSERVE, OnInstability.HOLD, OnInstability.STOP])
def test_it_may_be_told_only_or_end(on: OnInstability, envelope: str, tmp_path: Path) -> None:
    outcome = play(
        plan_of(tmp_path, envelope=envelope, on_instability=on), lambda controller: seen(controller, tmp_path)
    )
    (verdict,) = [one for one in outcome.state.verdicts if one.kind == "stability"]
    assert verdict.reason.startswith(f"{LAYER} head ")
    assert "updates are large beside the weights" in verdict.reason
    if on is OnInstability.STOP:
        assert outcome.state.phase is Phase.FAILED
        assert verdict.reason in (outcome.state.error or "")
        return
    assert outcome.state.phase is Phase.SUCCEEDED, outcome.state.error
    kept = f"the state after {HEALTHY} steps, which was healthy, is kept"
    assert verdict.done == (kept if on is OnInstability.HOLD else "nothing: elastic.on_instability is observe")


@pytest.mark.parametrize("doom", ["an alarm is written down", "a loss is noticed"])
def test_the_controller_dies_after_the_alarm(
    doom: str, by_hand: tuple[Outcome, RunPlan], envelope: str, tmp_path: Path
) -> None:
    DOOMS["an alarm is written down"] = lambda controller, it: bool(controller.machine.changes)
    with Lives(tmp_path, ranks=RANKS) as lives:
        lives.plan = plan_of(tmp_path, envelope=envelope, on_instability=OnInstability.ROLLBACK, remedy=REMEDY)
        lives.dies(doom)
        later = lives.begin()
        kept = Path(lives.plan.folder or "")
        lives.until(lambda: any(event["generation"].startswith("2.") for event in opened(kept)))
        open_gate(tmp_path, GATE)
        outcome = lives.ends(later)
    assert outcome.state.phase is Phase.SUCCEEDED, outcome.state.error
    assert outcome.weights == by_hand[0].weights
    assert records(lives.plan) == records(by_hand[1])


def opened(folder: Path) -> list[Mapping[str, Any]]:
    return [event for event in journal.read(folder) if event["what"] == "opened"]


def test_where_there_is_nothing_to_watch_it_is_said_once(tmp_path: Path) -> None:
    from .harness import run

    outcome = run(tmp_path / "plain", 2)
    assert outcome.state.phase is Phase.SUCCEEDED
    said = [event["watch"] for event in outcome.journal if event["what"] == "stability monitors"]
    assert len(said) == 1
    assert said[0].startswith("nothing: no queries and keys are found in Sequential")
    asked = run(tmp_path / "asked", 2, monitor_every=50)
    assert asked.state.phase is Phase.FAILED
    assert "stability monitors are asked for, but no queries and keys are found" in (asked.state.error or "")

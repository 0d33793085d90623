"""Runs a small training through planned faults on the local cluster, and tells whether it was as if undisturbed."""

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from everstep.conf.chaos import Fault
from everstep.conf.elastic import ElasticConfig, Timeouts
from everstep.conf.scaling import Scaling
from everstep.orchestrator.cluster import Cluster
from everstep.orchestrator.controller import Controller
from everstep.orchestrator.journal import Journal
from everstep.orchestrator.local_cluster import LocalCluster
from everstep.orchestrator.plan import RunPlan
from everstep.orchestrator.records.sink import Sink
from everstep.orchestrator.view import Phase, RunState
from ray import cloudpickle

# Ranks are other processes and cannot import the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

STEPS = 7
# A wide model's exchange does not fit into the sockets' buffers, so it can be seen half done.
NARROW, WIDE = 300, 1500
MICROBATCHES = 16
RUN_DEADLINE_S = 90.0
During = Callable[[Controller], Awaitable[None]]
QUICK = Timeouts(
    heartbeat_interval=0.2, heartbeat=1.5, probe=0.7, confirm=1.0, collective=20.0, recovery=60.0, adopt=4.0
)


def train(ctx: Any) -> None:
    """Dropout, uneven weights, a microbatch of weight 0 in every step, a schedule; logs what it saw."""
    import os
    import time
    from pathlib import Path

    import everstep
    import torch
    from torch import nn

    class Samples(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 50

        def __getitem__(self, item: int) -> dict:
            generator = torch.Generator().manual_seed(item)
            x = torch.randn(24, generator=generator)
            return {"id": item, "x": x, "y": int(x[0] > 0)}

    width = ctx.config["width"]
    model = nn.Sequential(
        nn.Linear(24, width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, width), nn.Linear(width, 2)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step))
    data = everstep.Microbatches(Samples(), size=3)
    run = ctx.begin(model=model, optimizer=optimizer, scheduler=scheduler, data=data, steps=ctx.config["steps"])
    log = os.open(f"{ctx.config['log']}/{os.getpid()}.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def await_the_others() -> None:
        """Until every other rank has finished its share of this step, so that lost microbatches go to all alike."""
        share = ctx.config["microbatches"] // ctx.config["ranks"]
        wanted = f'["samples", {step.number}, '
        deadline = time.monotonic() + 60.0
        while time.monotonic() < deadline:
            logs = [path for path in Path(ctx.config["log"]).glob("*.log") if path.stem != str(os.getpid())]
            there = len(logs) >= ctx.config["ranks"] - 1
            if there and all(path.read_text().count(wanted) >= share for path in logs):
                return
            time.sleep(0.001)
        raise TimeoutError("the other ranks did not finish their share")

    def await_the_gate() -> None:
        deadline = time.monotonic() + 60.0
        Path(ctx.config["log"], f"gate {step.number} awaited by {os.getpid()}").touch()
        while not Path(ctx.config["log"], f"gate {step.number}").exists():
            assert time.monotonic() < deadline, "nobody opened the gate"
            time.sleep(0.002)

    for step in run:
        if (ctx.replica, step.number) == tuple(ctx.config["hold"] or ()):
            await_the_others()
        for place, batch in enumerate(step):
            if place == 0 and step.number in ctx.config["gates"]:
                await_the_gate()
            ids = batch["id"].tolist()
            loss = nn.functional.cross_entropy(model(batch["x"]), batch["y"])
            # Weights differ from sample to sample; one in seven is 0 and its loss is not even finite.
            weight = sum(ids) % 7
            # A burst makes every gradient of this step too large for the grid that the steps before have set.
            weight *= 2**30 if step.number == ctx.config["burst"] else 1
            if weight == 0:
                loss = loss * float("nan")
            step.backward(loss, weight=weight)
            os.write(log, (json.dumps(["samples", step.number, ids]) + "\n").encode())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        os.write(log, (json.dumps(["rate", step.number, scheduler.get_last_lr()[0], step.loss]) + "\n").encode())
        scheduler.step()


@dataclass
class Outcome:
    """What a run left behind."""

    state: RunState
    journal: list[Mapping[str, object]]
    leftovers: list[str]
    computed: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    decided: dict[str, dict[int, list[int]]] = field(default_factory=dict)
    samples: dict[int, Counter[tuple[int, ...]]] = field(default_factory=dict)
    rates: dict[int, set[tuple[float, float]]] = field(default_factory=dict)
    voids: set[int] = field(default_factory=set)

    @property
    def weights(self) -> object:
        return self.state.metrics.get("weights_sha256")


def plan_of(
    folder: Path,
    ranks: int,
    chaos: Sequence[Fault] = (),
    width: int = NARROW,
    hold: tuple[int, int] | None = None,
    burst: int | None = None,
    minimum: int = 1,
    steps: int = STEPS,
    gates: Sequence[int] = (),
    kept: bool = False,
    **elastic: Any,
) -> RunPlan:
    """The small training on ``ranks`` ranks; files go to ``folder``.

    Args:
        hold: (replica, step): this replica begins that step only when all others have finished their share of it.
        burst: in this step all weights are 2^30 times larger.
        gates: in the first microbatch of each of these steps a rank waits until ``open_gate`` was called for it.
        kept: whether the run has a folder for its journal and its records.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "steps": steps,
        "gates": list(gates),
        "log": str(folder),
        "width": width,
        "hold": hold,
        "burst": burst,
        "ranks": ranks,
        "microbatches": MICROBATCHES,
    }
    settings: dict[str, Any] = {
        "microbatches_per_step": MICROBATCHES,
        "bucket_mib": 64 if width == WIDE else 0.5,
        # Most scenarios are about what the survivors do.
        "replace": False,
        "snapshot_every": 0,
        **elastic,
    }
    return RunPlan(
        run=folder.name,
        elastic=ElasticConfig(chaos=tuple(chaos), timeouts=QUICK, **settings),
        scaling=Scaling(minimum, ranks),
        train=cloudpickle.dumps(train),
        config=config,
        folder=str(folder / "kept") if kept else None,
        trace=str(folder),
    )


def run(folder: Path, ranks: int, chaos: Sequence[Fault] = (), spares: int = 0, **options: Any) -> Outcome:
    """Train to the end on the local cluster; nobody works before all spares stand by."""
    if not spares:
        plan = plan_of(folder, ranks, chaos, **options)
        return drive(plan, LocalCluster(plan.program()), folder)

    async def stand_by(controller: Controller) -> None:
        await until(lambda: controller.state().parked == spares)
        open_gate(folder, 0)

    plan = plan_of(folder, ranks, chaos, spares=spares, gates=(0,), **options)
    return drive(plan, LocalCluster(plan.program()), folder, stand_by)


def drive(
    plan: RunPlan, cluster: Cluster, folder: Path, during: During | None = None, sinks: Sequence[Sink] = ()
) -> Outcome:
    """Train to the end on a given cluster, within a deadline.

    Args:
        during: happens beside the training, and must have ended when that ends.
        sinks: take the records of steps.
    """

    async def until_over() -> tuple[RunState, Controller]:
        controller = Controller(
            plan.settings(term=1), cluster, Journal(), sinks, plan.checkpoints(), elastic=plan.elastic
        )
        beside = asyncio.create_task(during(controller)) if during else None
        state = await asyncio.wait_for(controller.run(), RUN_DEADLINE_S)
        if beside is not None:
            await asyncio.wait_for(beside, 1.0)
        return state, controller

    state, controller = asyncio.run(until_over())
    outcome = Outcome(state, controller.events(), controller.leftovers)
    return read(outcome, folder)


def open_gate(folder: Path, step: int) -> None:
    """Let the ranks go on that wait in this step."""
    (folder / f"gate {step}").touch()


def awaiting(folder: Path, step: int) -> int:
    """How many ranks have come to a gate, each in the first microbatch of its share of this step."""
    return len(list(folder.glob(f"gate {step} awaited by *")))


async def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Poll with a deadline: the condition lies in other processes."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


def read(outcome: Outcome, folder: Path) -> Outcome:
    """Add what the ranks wrote."""
    for path in folder.glob("*.jsonl"):
        for line in map(json.loads, path.read_text().splitlines()):
            if line["event"] == "computed":
                outcome.computed.setdefault(path.stem, []).append((line["step"], line["index"]))
            elif line["event"] != "decided":
                continue
            elif line["verdict"] == "void":
                outcome.voids.add(line["step"])
            else:
                outcome.decided.setdefault(path.stem, {})[line["step"]] = line["indices"]
    for path in folder.glob("*.log"):
        for what, step, *facts in map(json.loads, path.read_text().splitlines()):
            if what == "samples":
                outcome.samples.setdefault(step, Counter())[tuple(facts[0])] += 1
            else:
                outcome.rates.setdefault(step, set()).add(tuple(facts))
    return outcome


def assert_as_if_undisturbed(outcome: Outcome, reference: Outcome, faults: Sequence[Fault], lost: int) -> None:
    """Same weights, sample ids and rates; every fault fired; nothing summed twice; nothing computed in vain."""
    assert outcome.state.phase is Phase.SUCCEEDED, (outcome.state.error, outcome.state.traceback)
    assert outcome.leftovers == []
    assert len(outcome.state.faults_fired) == len(faults), outcome.state.faults_fired
    for fault in faults:
        hit = f"{fault.target} {fault.replica}."
        assert any(fault.point in fired and hit in fired for fired in outcome.state.faults_fired)
    assert outcome.state.metrics["world"] == reference.state.metrics["world"] - lost
    assert outcome.weights == reference.weights
    assert outcome.rates == reference.rates
    for step, expected in reference.samples.items():
        # Lost microbatches are computed again, so nothing may be missing, and nothing may be new.
        assert set(outcome.samples[step]) == set(expected), f"sample ids of step {step}"
    for incarnation, computed in outcome.computed.items():
        assert len(computed) == len(set(computed)), f"{incarnation} computed a finished microbatch again"
    assert_each_index_once(outcome, len(reference.rates))


def assert_each_index_once(outcome: Outcome, steps: int = STEPS) -> None:
    """Per step, contributions of those who decided are disjoint; what they lack came from one who died in the vote."""
    for step in range(steps):
        shares = {name: steps[step] for name, steps in outcome.decided.items() if step in steps}
        summed = Counter(index for share in shares.values() for index in share)
        assert summed, f"nobody decided step {step}"
        assert max(summed.values()) == 1, f"step {step} summed {summed}"
        missing = set(range(MICROBATCHES)) - set(summed)
        from_the_dead = {
            index
            for name, computed in outcome.computed.items()
            if name not in shares
            for computed_step, index in computed
            if computed_step == step
        }
        assert missing <= from_the_dead, f"step {step} misses {missing}"


def twins(faults: Sequence[Fault], other: int) -> tuple[Fault, ...]:
    """Each fault also on another replica, at the same place and time."""
    return (*faults, *(replace(fault, replica=other) for fault in faults))

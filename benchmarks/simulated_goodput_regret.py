"""What ``auto`` loses when the costs that it predicts with are wrong, against the best fixed policy in hindsight."""

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

from everstep.benchmarks.common import Row
from everstep.conf.simulation import Batch, Failures, Fleet, PolicyKeys, SimulatedCosts, Simulation
from everstep.orchestrator.simulation.engine import Engine
from rich.table import Table

FIXED = ("swap", "shrink", "restart")
WRONG_BY = 0.5
# Differences below a thousandth of the goodput are none.
_ALIKE = 0.001


@dataclass(frozen=True)
class Duel:
    """One drawn world.

    Attributes:
        world: as it is.
        goodput: by policy; ``auto`` with wrong costs, ``auto, true costs`` with the right ones.
    """

    world: Simulation
    goodput: Mapping[str, float]

    @property
    def best(self) -> str:
        """The fixed policy that one would have wanted."""
        return max(FIXED, key=lambda name: self.goodput[name])

    def regret(self, policy: str = "auto") -> float:
        """Share of the best fixed policy's goodput that this one does not reach; below 0 if it is better."""
        return 1 - self.goodput[policy] / self.goodput[self.best]


def duel(chance: random.Random) -> Duel:
    """Draw a world, and let every policy go through the same failures in it."""
    world = drawn(chance)
    wrong = {item.name: 1 + WRONG_BY * (2 * chance.random() - 1) for item in fields(SimulatedCosts)}
    goodput = {name: _goodput(world, name) for name in FIXED}
    goodput["auto"] = _goodput(replace(world, believed=wrong), "auto")
    goodput["auto, true costs"] = _goodput(world, "auto")
    return Duel(world, goodput)


def drawn(chance: random.Random) -> Simulation:
    """A world out of many: small and large shares of a step, quick and slow states, with and without replacements."""
    replicas, size = chance.choice((4, 8, 16, 32)), chance.choice((1, 1, 2, 4))
    spares = size * chance.choice((0, 1, 2, 4))
    microbatch = _between(chance, 0.2, 5.0)
    microbatches = replicas * chance.choice((1, 2, 4, 8))
    step = microbatches / replicas * microbatch
    seconds, losses = 12 * 3600.0, _between(chance, 4, 40)
    saved = max(1, round(_between(chance, 300.0, 3600.0) / step))
    return Simulation(
        fleet=Fleet(
            replicas=replicas,
            ranks_per_replica=size,
            minimum=max(1, replicas // 2),
            ranks_per_node=size,
            idle_nodes=chance.choice((0, 2)),
            repair=_between(chance, 60.0, 7200.0),
        ),
        batch=Batch(microbatches=microbatches),
        costs=SimulatedCosts(
            microbatch=microbatch,
            step=step * _between(chance, 0.01, 0.3),
            detect=_between(chance, 0.1, 30.0),
            rebuild=_between(chance, 0.1, 30.0),
            adopt=_between(chance, 0.1, 60.0),
            restart=_between(chance, 5.0, 600.0),
            state_bytes=1e9,
            transfer_per_byte=_between(chance, 1e-9, 3e-7),
            vault_per_byte=_between(chance, 1e-9, 3e-8),
            storage_per_byte=_between(chance, 1e-8, 3e-7),
            checkpoint=_between(chance, 0.1, 30.0),
            snapshot=_between(chance, 0.01, 0.3),
        ),
        policies=PolicyKeys(
            spares=spares,
            replace=chance.random() < 0.7,
            patience=4 * 3600.0,
            checkpoint_every=saved,
            snapshot_every=max(1, saved // 10) * chance.choice((0, 1)),
        ),
        failures=Failures(rank_mtbf=seconds / losses * replicas * size),
        seconds=seconds,
        seed=chance.randrange(2**31),
    )


def _goodput(world: Simulation, recovery: str) -> float:
    return Engine(replace(world, policies=replace(world.policies, recovery=recovery))).run().goodput


def _between(chance: random.Random, low: float, high: float) -> float:
    """Even over orders of magnitude."""
    return float(low * (high / low) ** chance.random())


def duels(count: int, seed: int) -> list[Duel]:
    """That many drawn worlds, and what came of them."""
    chance = random.Random(seed)
    return [duel(chance) for _ in range(count)]


def rows(fought: Sequence[Duel]) -> list[Row]:
    """The worst regret, the usual one, and the worst with true costs."""
    regrets = [one.regret() for one in fought]
    return [
        Row("auto_regret", max(regrets), "share of goodput"),
        Row("auto_regret_median", statistics.median(regrets), "share of goodput"),
        Row("auto_regret_true_costs", max(one.regret("auto, true costs") for one in fought), "share of goodput"),
    ]


def regret_table(fought: Sequence[Duel]) -> Table:
    """How much each policy loses against the best fixed one."""
    title = f"regret against the best fixed policy, {len(fought)} drawn worlds"
    table = Table("policy", "best of the fixed, worlds", "regret, median", "worst", "worlds lost by over 1 %",
                  title=title, title_justify="left")  # fmt: skip
    for column in table.columns[1:]:
        column.justify = "right"
    for policy in ("auto", "auto, true costs", *FIXED):
        regrets = [one.regret(policy) for one in fought]
        best = str(sum(one.best == policy for one in fought)) if policy in FIXED else ""
        behind = sum(regret > 0.01 for regret in regrets)
        table.add_row(policy, best, f"{statistics.median(regrets):.2%}", f"{max(regrets):.2%}", str(behind))
    return table


def where_auto_wins(fought: Sequence[Duel]) -> Table:
    """Worlds in which ``auto`` is better, alike and worse than each fixed policy, by the kind of world."""
    groups: dict[str, Callable[[Duel], bool]] = {
        "all": lambda one: True,
        "with replacements": lambda one: one.world.policies.replace,
        "without": lambda one: not one.world.policies.replace,
        "with spares": lambda one: one.world.policies.spares > 0,
        "none": lambda one: one.world.policies.spares == 0,
        "snapshots in vaults": lambda one: one.world.policies.snapshot_every > 0,
        "checkpoints only": lambda one: one.world.policies.snapshot_every == 0,
    }
    table = Table(
        "worlds", "", *FIXED, title="auto, costs wrong: better / alike / worse than ...", title_justify="left"
    )
    for name, belongs in groups.items():
        there = [one for one in fought if belongs(one)]
        cells = []
        for policy in FIXED:
            gains = [one.goodput["auto"] / one.goodput[policy] - 1 for one in there]
            better, worse = sum(gain > _ALIKE for gain in gains), sum(gain < -_ALIKE for gain in gains)
            cells.append(f"{better} / {len(there) - better - worse} / {worse}")
        table.add_row(name, str(len(there)), *cells)
    return table

"""The machine's settings, and the policies, of a simulation."""

from dataclasses import dataclass, fields
from typing import Any

from ...conf.elastic import Timeouts
from ...conf.errors import ConfigError
from ...conf.simulation import Simulation
from ...policies.costs import Costs
from ...policies.quarantine import Quarantine
from ...policies.recovery import RecoveryDecision, RecoveryPolicy, recovery_policy
from ...policies.remedies import LossFacts
from ...policies.workload import WorkloadPolicy, workload_policy
from ..machine.settings import Settings
from .account import Saves

# Nothing is found out by silence: the engine says when somebody dies.
_NEVER_S = 1e12
_TIMEOUTS = Timeouts(
    heartbeat_interval=1.0,
    heartbeat=_NEVER_S,
    probe=_NEVER_S,
    confirm=_NEVER_S,
    collective=2 * _NEVER_S,
    build=2 * _NEVER_S,
    recovery=4 * _NEVER_S,
    start=_NEVER_S,
    finish=_NEVER_S,
    orphan=_NEVER_S,
)


@dataclass
class Remembering:
    """A recovery policy, and what it decided last."""

    policy: RecoveryPolicy
    last: str = ""

    def given(self, costs: Costs) -> "Remembering":
        """The costs are what the simulation says that policies believe, not what was measured."""
        return self

    def decide(self, facts: LossFacts) -> RecoveryDecision:
        decision = self.policy.decide(facts)
        self.last = str(decision.remedy)
        return decision


def settings_of(simulation: Simulation, workload: WorkloadPolicy, recovery: Any) -> Settings:
    """Of the machine."""
    fleet, policies = simulation.fleet, simulation.policies
    ranks = tuple(f"{place:06d}" for place in range(simulation.ranks + policies.spares))
    return Settings(
        run="simulated",
        term=1,
        ranks=ranks,
        minimum=fleet.minimum,
        workload=workload,
        timeouts=_TIMEOUTS,
        ranks_per_replica=fleet.ranks_per_replica,
        recovery=recovery,
        spares=policies.spares,
        replaces=policies.replace,
        lives="+",
        replacement=fleet.repair,
        quarantine=Quarantine() if policies.quarantine else Quarantine(share=0.0),
    )


def workload_of(simulation: Simulation) -> WorkloadPolicy:
    """The policy that the simulation names.

    Raises:
        ConfigError: there is none of this name.
    """
    try:
        return workload_policy(simulation.policies.workload, simulation.fleet.replicas)
    except ValueError as error:
        raise ConfigError(f"policies.workload: {error}") from None


def recovery_of(simulation: Simulation) -> RecoveryPolicy:
    """The policy that the simulation names, with the costs that it is made to believe.

    Raises:
        ConfigError: there is none of this name.
    """
    policies = simulation.policies
    believed = simulation.believed_costs
    costs = Costs(**{item.name: believed[item.name] for item in fields(Costs)})
    try:
        return recovery_policy(policies.recovery, costs, policies.horizon, policies.patience)
    except ValueError as error:
        raise ConfigError(f"policies.recovery: {error}") from None


def saves_of(simulation: Simulation) -> list[Saves]:
    """The saves that are taken."""
    policies, costs = simulation.policies, simulation.costs
    ways = (
        ("storage", policies.checkpoint_every, costs.checkpoint),
        ("vault", policies.snapshot_every, costs.snapshot),
    )
    return [Saves(source, every, stall) for source, every, stall in ways if every]

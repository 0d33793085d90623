"""What one seed stands for: the run, its policies, and the trouble that it will have."""

from dataclasses import dataclass

from ....conf.elastic import Timeouts
from ....policies.recovery import RecoveryPolicy, recovery_policy
from ....policies.workload import WorkloadPolicy, workload_policy
from .chance import Chance

# With short tempers ranks are given up sooner, so more of them wake up afterwards.
_PATIENT = Timeouts()
_SHORT = Timeouts(
    heartbeat_interval=1.0, heartbeat=3.0, probe=1.0, confirm=1.0, collective=12.0, build=6.0, recovery=40.0,
    start=60.0, finish=60.0, orphan=12.0, adopt=5.0,
)  # fmt: skip
_TIMEOUTS = (_PATIENT, _SHORT, _SHORT)


@dataclass(frozen=True)
class Scenario:
    """Everything about a run that is drawn before it begins.

    Attributes:
        seed: that it comes from.
        replicas: of the first world.
        ranks_per_replica: R.
        spares: parked ranks beside it.
        replaces: whether lost ranks are asked for anew.
        minimum: fewest replicas that may train.
        workload: name of the policy that gives out microbatches.
        recovery: name of the policy that answers a loss.
        patience: seconds that training may wait for capacity.
        nodes: machines that it begins on.
        places: ranks that a machine has room for.
        returns: seconds after which a lost machine is replaced, on average; None if it is not.
        saves: every how many steps the state is saved in vaults; 0 for never.
        steps: optimizer steps.
        skip_poison: whether a poison microbatch is left out.
        timeouts: of the run.
        faults: how many hit it, if it lives so long.
        calm: how many points of the protocol lie between two faults, on average.
        doubling: share of control messages that arrive a second time.
    """

    seed: int
    replicas: int
    ranks_per_replica: int
    spares: int
    replaces: bool
    minimum: int
    workload: str
    recovery: str
    patience: float
    nodes: tuple[str, ...]
    places: int
    returns: float | None
    saves: int
    steps: int
    skip_poison: bool
    timeouts: Timeouts
    faults: int
    calm: float
    doubling: float

    @property
    def ranks(self) -> int:
        """That the run begins with, spares included."""
        return self.replicas * self.ranks_per_replica + self.spares

    def workload_policy(self) -> WorkloadPolicy:
        return workload_policy(self.workload, self.replicas)

    def recovery_policy(self) -> RecoveryPolicy:
        return recovery_policy(self.recovery, patience=self.patience)


def draw(seed: int) -> Scenario:
    """The scenario of a seed."""
    chance = Chance(f"scenario {seed}")
    size = chance.pick((1,) * 8 + (2, 2, 3))
    replicas = chance.pick((2, 3, 4, 5, 6, 8)) if size == 1 else chance.pick((1, 2, 3, 4))
    replaces = chance.of(0.75)
    spares = chance.pick((0, 0, 1, 2))
    ranks = replicas * size + spares
    nodes = chance.between(2, max(2, ranks))
    places = -(-ranks // nodes) + chance.pick((0, 0, 1, 2))
    steps = chance.between(1, 10 if replaces else 5)
    return Scenario(
        seed=seed,
        replicas=replicas,
        ranks_per_replica=size,
        spares=spares,
        replaces=replaces,
        minimum=chance.pick((1, 1, 1, max(1, replicas - 1), replicas)),
        workload=chance.pick(("balanced",) * 4 + ("versatile",) * 3 + ("weighted", "weighted", "adaptive_world")),
        recovery=chance.pick(("auto", "auto", "swap", "swap", "shrink", "restart")),
        patience=chance.pick((10.0, 30.0, 90.0)),
        nodes=tuple(f"node {place}" for place in range(nodes)),
        places=places,
        returns=chance.pick((None, 5.0, 5.0, 30.0)),
        saves=chance.pick((0, 0, 1, 1, 2)),
        steps=steps,
        skip_poison=chance.of(0.7),
        timeouts=chance.pick(_TIMEOUTS),
        faults=chance.between(0, (6 if replaces else 2) * (replicas * size)),
        calm=chance.pick((3.0, 6.0, 12.0)) * ranks,
        doubling=chance.pick((0.0, 0.0, 0.05)),
    )

"""What one seed stands for: the run, its policies, and the trouble that it will have."""

from dataclasses import dataclass, field, replace

from ....conf.elastic import Timeouts
from ....policies.quarantine import Quarantine
from ....policies.recovery import RecoveryPolicy, recovery_policy
from ....policies.workload import WorkloadPolicy, workload_policy
from .chance import Chance

# With short tempers ranks are given up sooner, so more of them wake up afterwards.
_PATIENT = Timeouts()
_SHORT = Timeouts(
    heartbeat_interval=1.0, heartbeat=3.0, probe=1.0, confirm=1.0, collective=12.0, build=6.0, recovery=40.0,
    start=60.0, finish=60.0, orphan=12.0, adopt=5.0,
)  # fmt: skip
# Where one fault follows on another, nobody should be waited for longer than the next one takes.
_BRISK = Timeouts(
    heartbeat_interval=1.25, heartbeat=2.5, node=1.5, probe=1.0, confirm=1.0, collective=5.0, build=3.0, recovery=25.0,
    start=60.0, finish=30.0, orphan=9.0, adopt=3.0,
)  # fmt: skip
# How many of the seeds with so many replicas compare what they hold.
_CHECKED, _PEERS = 0.5, 3
# How many seeds are of the kind in which faults are rare, so that what comes after one is seen to its end.
_SPARSE = 0.3
# Kinds of faults as often as they are drawn. Where they are frequent, those are that the ones hit may live through.
_DEADLY = ("crash",) * 6 + ("nap", "partition") * 4 + ("node", "stop", "doze", "cut", "raise", "glitch") * 2 + (
    "drain", "resize", "controller", "controller", "replaced")  # fmt: skip
_PASSING = ("nap", "partition") * 9 + ("crash",) * 6 + ("doze",) * 4 + (
    "controller", "replaced", "cut", "glitch") * 2 + ("node", "stop", "raise", "drain", "resize")  # fmt: skip
_WORKLOADS = ("balanced",) * 4 + ("versatile",) * 3 + ("weighted", "weighted", "adaptive_world")
_RECOVERIES = ("auto", "auto", "swap", "swap", "shrink", "restart")


@dataclass(frozen=True)
class Trouble:
    """How much goes wrong, and how soon after each other.

    Attributes:
        faults: how many hit a run, if it lives so long.
        kinds: that they are drawn from.
        brevity: by which what passes by itself is shorter than usual.
        burst: how many of them come close together.
        calm: how many points of the protocol lie between two of these, on average.
        seconds: after which the next one comes all the same, on average.
        lull: the same two between bursts.
        newcomers: share of ranks that may be hit before they have computed anything.
        waits: whether it begins only when some state is saved, since the run would soon be lost otherwise.
    """

    faults: int
    kinds: tuple[str, ...]
    brevity: float
    burst: int
    calm: float
    seconds: float
    lull: tuple[float, float]
    newcomers: float = 1.0
    waits: bool = False


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
        trouble: what hits it.
        doubling: share of control messages that arrive a second time.
        quarantine: keeps machines out.
        checks: every how many steps ranks compare what they hold; 0 for never, and then nothing flips.
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
    trouble: Trouble
    doubling: float
    quarantine: Quarantine = field(default_factory=Quarantine)
    checks: int = 0

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
    drawn = _sparse(seed, chance) if chance.of(_SPARSE) else _dense(seed, chance)
    return _checked(drawn, Chance(f"checks {seed}"))


def _checked(drawn: Scenario, chance: Chance) -> Scenario:
    """The same, in which some ranks compute wrong, if enough of them are compared to tell who."""
    if drawn.replicas < _PEERS or not chance.of(_CHECKED):
        return drawn
    return replace(drawn, checks=chance.pick((1, 1, 2, 3)))


def _sparse(seed: int, chance: Chance) -> Scenario:
    """Worlds of any size, which may be lost for good; a few faults, mostly far apart."""
    size = chance.pick((1,) * 8 + (2, 2, 3))
    replicas = chance.pick((2, 3, 4, 5, 6, 8)) if size == 1 else chance.pick((1, 2, 3, 4))
    replaces = chance.of(0.75)
    spares = chance.pick((0, 0, 1, 2))
    ranks = replicas * size + spares
    nodes = chance.between(2, max(2, ranks))
    faults = chance.between(0, (6 if replaces else 2) * replicas * size)
    calm, seconds = chance.pick((3.0, 6.0, 12.0)) * ranks, chance.pick((5.0, 20.0, 300.0))
    return Scenario(
        seed=seed,
        replicas=replicas,
        ranks_per_replica=size,
        spares=spares,
        replaces=replaces,
        minimum=chance.pick((1, 1, 1, max(1, replicas - 1), replicas)),
        workload=chance.pick(_WORKLOADS),
        recovery=chance.pick(_RECOVERIES),
        patience=chance.pick((10.0, 30.0, 90.0)),
        nodes=tuple(f"node {place}" for place in range(nodes)),
        places=-(-ranks // nodes) + chance.pick((0, 0, 1, 2)),
        returns=chance.pick((None, 5.0, 5.0, 30.0)),
        saves=chance.pick((0, 0, 1, 1, 2)),
        steps=chance.between(1, 10 if replaces else 5),
        skip_poison=chance.of(0.7),
        timeouts=chance.pick((_PATIENT, _SHORT, _SHORT)),
        trouble=Trouble(faults, _DEADLY, 1.0, 1, calm, seconds, (calm, seconds)),
        doubling=chance.pick((0.0, 0.0, 0.05)),
    )


def _dense(seed: int, chance: Chance) -> Scenario:
    """Small worlds that come back again and again, under bursts of faults with time to heal between them."""
    size = chance.pick((1,) * 6 + (2,))
    replicas = chance.pick((2, 3, 3, 4)) if size == 1 else chance.pick((1, 2))
    spares = chance.pick((0, 1, 2))
    ranks = replicas * size + spares
    nodes = chance.between(2, max(2, ranks))
    saves = chance.pick((0,) + (1,) * 6 + (2,))
    timeouts = chance.pick((_SHORT, _BRISK, _BRISK))
    trouble = Trouble(
        chance.between(40, 180),
        _PASSING,
        timeouts.heartbeat / _PATIENT.heartbeat,
        chance.pick((2, 3, 5)),
        chance.pick((1.0, 2.0)) * ranks,
        chance.pick((0.4, 0.8)),
        (chance.pick((6.0, 12.0, 24.0)) * ranks, chance.pick((1.5, 3.0))),
        newcomers=chance.pick((0.1, 0.3)),
        waits=saves > 0,
    )
    return Scenario(
        seed=seed,
        replicas=replicas,
        ranks_per_replica=size,
        spares=spares,
        replaces=True,
        minimum=chance.pick((1, 1, 1, max(1, replicas - 1))),
        workload=chance.pick(_WORKLOADS),
        recovery=chance.pick(_RECOVERIES),
        patience=chance.pick((30.0, 90.0)),
        nodes=tuple(f"node {place}" for place in range(nodes)),
        places=-(-ranks // nodes) + chance.pick((1, 3)),
        returns=chance.pick((0.5, 2.0)),
        saves=saves,
        steps=chance.between(8, 32),
        skip_poison=chance.of(0.9),
        timeouts=timeouts,
        trouble=trouble,
        doubling=chance.pick((0.0, 0.0, 0.05)),
        # Here every machine fails every few seconds.
        quarantine=Quarantine(half_life=10.0),
    )

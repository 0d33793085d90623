"""What a run is given before it begins, and what does not change while it lasts."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...conf.elastic import Timeouts
from ...conf.remedy import OnInstability, Remedy
from ...policies.quarantine import Quarantine
from ...policies.recovery import RecoveryPolicy, Shrink
from ...policies.stragglers import StragglerPolicy
from ...policies.workload import WorkloadPolicy


@dataclass(frozen=True)
class Settings:
    """What does not change during a run.

    Attributes:
        run: its name.
        term: of this controller life.
        ranks: incarnations to start, in the order of their seats; spares come after the last seat.
        minimum: fewest replicas that may train.
        workload: policy that gives microbatches to replicas.
        timeouts: all deadlines, in seconds.
        store_prefix: root of the store keys; the generation is appended.
        weight_unit: what the weights of losses count.
        skip_poison: whether a poison microbatch is left out; else it ends the run.
        recovery: policy that answers a loss.
        spares: parked ranks that there should be beside the members.
        replaces: whether another rank is asked for in the place of each that is gone.
        lives: what the incarnations end with that the machine names itself; another one in each term.
        replacement: seconds that it is expected to take until room for a lost replica comes; None if it is not.
        quarantine: which nodes are kept out because they fail again and again.
        epoch: seconds since the epoch when the clock of the machine stands at 0.
        alike: whether all owe alike while nobody is slow, although shares can follow speeds.
        stragglers: what may be done about members that are slow.
        on_instability: what follows from an alarm of the stability monitors.
        remedy: what is different when everybody has gone back because of one.
        cadences: by what is looked for, steps from one check to the next; states are kept until they are judged.
        rolls_back: whether a rank that computes wrong is shut out and everybody goes back; else it is only said.
        hang: seconds without progress after which a rank that holds up others is shut out; None goes by the steps.
    """

    run: str
    term: int
    ranks: tuple[str, ...]
    minimum: int
    workload: WorkloadPolicy
    timeouts: Timeouts
    ranks_per_replica: int = 1
    store_prefix: str = ""
    weight_unit: str = "weight"
    skip_poison: bool = False
    recovery: RecoveryPolicy = field(default_factory=Shrink)
    spares: int = 0
    replaces: bool = False
    lives: str = ""
    replacement: float | None = None
    quarantine: Quarantine = field(default_factory=Quarantine)
    on_instability: OnInstability = OnInstability.OBSERVE
    remedy: Remedy = field(default_factory=Remedy)
    cadences: Mapping[str, int] = field(default_factory=dict)
    rolls_back: bool = True
    hang: float | None = None
    alike: bool = False
    stragglers: StragglerPolicy = field(default_factory=StragglerPolicy)
    epoch: float = 0.0

    @property
    def replicas(self) -> int:
        """That the run starts with."""
        return (len(self.ranks) - self.spares) // self.ranks_per_replica

"""The typed configuration of a simulated run: its fleet, what things cost, what fails, and which policies answer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, make_dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from .bounds import refuse_below, refuse_nonpositive
from .errors import ConfigError
from .files import structured, text_of

# A folder of a measured run -> costs by name.
Measure = Callable[[Path], Mapping[str, float]]


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """The machines. Rank slots are numbered through nodes, and nodes through racks.

    Args:
        replicas: model copies that the run begins with.
        ranks_per_replica: R.
        gpus_per_rank: GPUs that a rank stands for; more than 1 if they can only live and die together.
        minimum: fewest replicas that may train.
        ranks_per_node: slots of one node.
        nodes_per_rack: nodes that a rack loss takes with it.
        idle_nodes: nodes beyond those that replicas and spares fill at the start.
        repair: seconds after a failure until its slots can be used again; None never.

    Raises:
        ConfigError: a number out of range, or a minimum that can never be met.
    """

    replicas: int
    ranks_per_replica: int = 1
    gpus_per_rank: int = 1
    minimum: int = 1
    ranks_per_node: int = 8
    nodes_per_rack: int = 16
    idle_nodes: int = 0
    repair: float | None = None

    def __post_init__(self) -> None:
        for name in ("replicas", "ranks_per_replica", "gpus_per_rank", "minimum", "ranks_per_node", "nodes_per_rack"):
            refuse_below(1, ConfigError, **{f"fleet.{name}": getattr(self, name)})
        refuse_below(0, ConfigError, **{"fleet.idle_nodes": self.idle_nodes, "fleet.repair": self.repair or 0})
        if self.minimum > self.replicas:
            raise ConfigError(
                f"fleet.minimum={self.minimum} exceeds fleet.replicas={self.replicas}: such a world can never train; "
                "lower the minimum"
            )


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One optimizer step.

    Args:
        microbatches: B, summed by every step.
        tokens_per_microbatch: what one of them trains on.
    """

    microbatches: int
    tokens_per_microbatch: int = 4096

    def __post_init__(self) -> None:
        refuse_below(1, ConfigError, **{f"batch.{item.name}": getattr(self, item.name) for item in fields(self)})


@dataclass(frozen=True, kw_only=True)
class SimulatedCosts:
    """What really happens in the simulation, in seconds unless said otherwise.

    Args:
        microbatch: one forward and backward of one replica; positive.
        step: what a step takes beside its microbatches.
        detect: from a death to its notice.
        rebuild: from the word to go to the new group.
        adopt: until a parked rank computes at the coordinate that it is given, its state not included.
        restart: from asking for a rank until it can join.
        relaunch: what going back to a saved state takes beside rebuilding and reading it; a system that restarts all
            of its processes pays for that here.
        transfer_per_byte: of a living rank's state to another one.
        vault_per_byte: of a snapshot from a vault.
        storage_per_byte: of a checkpoint from storage.
        state_bytes: of one rank, in bytes.
        checkpoint: for how long one checkpoint holds training up.
        snapshot: the same for a snapshot.

    Raises:
        ConfigError: a value that is no cost.
    """

    microbatch: float
    step: float = 0.0
    detect: float = 0.1
    rebuild: float = 0.03
    adopt: float = 0.0
    restart: float = 5.0
    relaunch: float = 0.0
    transfer_per_byte: float = 1e-9
    vault_per_byte: float = 1e-9
    storage_per_byte: float = 1e-8
    state_bytes: float = 0.0
    checkpoint: float = 0.0
    snapshot: float = 0.0

    def __post_init__(self) -> None:
        refuse_below(0, ConfigError, **{f"costs.{item.name}": getattr(self, item.name) for item in fields(self)})
        refuse_nonpositive(ConfigError, **{"costs.microbatch": self.microbatch})


# ``SimulatedCosts`` as a file spells it: what is not said is measured, or has its default.
_CostKeys = make_dataclass(
    "_CostKeys",
    [(item.name, float | None, field(default=None)) for item in fields(SimulatedCosts)],
    frozen=True,
    kw_only=True,
)


@dataclass(frozen=True, kw_only=True)
class PolicyKeys:
    """Who decides.

    Args:
        workload: name of a workload policy.
        recovery: name of a recovery policy.
        horizon: how far ``auto`` looks, in seconds.
        patience: seconds that training may wait for capacity in all.
        spares: parked ranks beside the members.
        replace: whether every lost rank is asked for anew.
        quarantine: whether nodes that fail again and again are kept out.
        checkpoint_every: steps between checkpoints; 0 takes none.
        snapshot_every: steps between snapshots in vaults; 0 takes none.
    """

    workload: str = "balanced"
    recovery: str = "auto"
    horizon: float = 600.0
    patience: float = 600.0
    spares: int = 0
    replace: bool = False
    quarantine: bool = True
    checkpoint_every: int = 0
    snapshot_every: int = 0

    def __post_init__(self) -> None:
        for name in ("horizon", "patience", "spares", "checkpoint_every", "snapshot_every"):
            refuse_below(0, ConfigError, **{f"policies.{name}": getattr(self, name)})


@dataclass(frozen=True, kw_only=True)
class Flapping:
    """Some nodes fail again and again.

    Args:
        nodes: how many, the first ones of the fleet.
        mtbf: mean seconds between two failures of one of them.
        repair: seconds until such a node can be used again.
    """

    nodes: int = 0
    mtbf: float = 3600.0
    repair: float = 0.0

    def __post_init__(self) -> None:
        refuse_below(0, ConfigError, **{"failures.flapping.nodes": self.nodes, "failures.flapping.repair": self.repair})
        refuse_nonpositive(ConfigError, **{"failures.flapping.mtbf": self.mtbf})


@dataclass(frozen=True, kw_only=True)
class Stragglers:
    """Ranks that are slow for a time.

    Args:
        mtbf: mean seconds between two of them, per rank; None for none.
        factor: by which a microbatch takes longer meanwhile; at least 1.
        seconds: how long that lasts.
    """

    mtbf: float | None = None
    factor: float = 2.0
    seconds: float = 600.0

    def __post_init__(self) -> None:
        if self.mtbf is not None:
            refuse_nonpositive(ConfigError, **{"failures.stragglers.mtbf": self.mtbf})
        refuse_below(1, ConfigError, **{"failures.stragglers.factor": self.factor})
        refuse_nonpositive(ConfigError, **{"failures.stragglers.seconds": self.seconds})


@dataclass(frozen=True, kw_only=True)
class OnSteps:
    """One rank of a living replica dies whenever training first comes to certain steps.

    Args:
        first: the first such step; 1.5 is the middle of step 1, counted from 0.
        every: steps between two.
        count: how many die; 0 for none.
    """

    first: float = 0.5
    every: float = 1.0
    count: int = 0

    def __post_init__(self) -> None:
        refuse_below(
            0, ConfigError, **{f"failures.on_steps.{item.name}": getattr(self, item.name) for item in fields(self)}
        )
        refuse_nonpositive(ConfigError, **{"failures.on_steps.every": self.every})


@dataclass(frozen=True, kw_only=True)
class Failures:
    """What fails. Times between failures are exponential, with these means in seconds; None for never.

    Args:
        rank_mtbf: of one rank alone.
        node_mtbf: of one node, with all of its ranks.
        rack_mtbf: of one rack, with all of its nodes.
        flapping: nodes that fail again and again.
        stragglers: ranks that are slow for a time.
        on_steps: losses by the step.
        trace: a file of failures, see ``orchestrator/simulation/traces.py``; from the folder of this file.
    """

    rank_mtbf: float | None = None
    node_mtbf: float | None = None
    rack_mtbf: float | None = None
    flapping: Flapping = field(default_factory=Flapping)
    stragglers: Stragglers = field(default_factory=Stragglers)
    on_steps: OnSteps = field(default_factory=OnSteps)
    trace: str | None = None

    def __post_init__(self) -> None:
        for name in ("rank_mtbf", "node_mtbf", "rack_mtbf"):
            if getattr(self, name) is not None:
                refuse_nonpositive(ConfigError, **{f"failures.{name}": getattr(self, name)})


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """One simulated run, whole.

    Args:
        fleet: the machines.
        batch: one optimizer step.
        costs: what really happens.
        believed: by name of a cost, the factor by which policies take it for more than it is.
        policies: who decides.
        failures: what fails.
        seconds: virtual time at which the simulation stops; None when its steps are done.
        steps: optimizer steps after which it stops; None for no such end.
        gpu_hours: of ranks that live, after which it stops; None for no such end.
        seed: of everything that is drawn.
        folder: where the trace is looked for.

    Raises:
        ConfigError: values that cannot work, in one line.
    """

    fleet: Fleet
    batch: Batch
    costs: SimulatedCosts
    believed: Mapping[str, float] = field(default_factory=dict)
    policies: PolicyKeys = field(default_factory=PolicyKeys)
    failures: Failures = field(default_factory=Failures)
    seconds: float | None = None
    steps: int | None = None
    gpu_hours: float | None = None
    seed: int = 0
    folder: Path = field(default=Path("."), compare=False)

    def __post_init__(self) -> None:
        ends = {name: getattr(self, name) for name in ("seconds", "steps", "gpu_hours")}
        if all(end is None for end in ends.values()):
            raise ConfigError("the simulation has no end; give seconds, steps or gpu_hours")
        refuse_nonpositive(ConfigError, **{name: end for name, end in ends.items() if end is not None})
        known = [item.name for item in fields(SimulatedCosts)]
        for name, factor in self.believed.items():
            if name not in known:
                raise ConfigError(f"believed.{name} is not known; known here: {', '.join(known)}")
            refuse_nonpositive(ConfigError, **{f"believed.{name}": factor})

    @property
    def ranks(self) -> int:
        """Members at the start."""
        return self.fleet.replicas * self.fleet.ranks_per_replica

    @property
    def nodes(self) -> int:
        """All nodes of the fleet."""
        return -(-(self.ranks + self.policies.spares) // self.fleet.ranks_per_node) + self.fleet.idle_nodes

    @property
    def believed_costs(self) -> dict[str, float]:
        """The costs as policies see them."""
        return {
            item.name: getattr(self.costs, item.name) * self.believed.get(item.name, 1.0) for item in fields(self.costs)
        }


@dataclass(frozen=True, kw_only=True)
class _FileKeys:
    """The schema of a file."""

    fleet: Fleet
    batch: Batch
    costs: _CostKeys = field(default_factory=_CostKeys)  # type: ignore[valid-type]
    costs_from: str | None = None
    believed: dict[str, float] = field(default_factory=dict)
    policies: PolicyKeys = field(default_factory=PolicyKeys)
    failures: Failures = field(default_factory=Failures)
    seconds: float | None = None
    steps: int | None = None
    gpu_hours: float | None = None
    seed: int = 0


def load(path: str | Path, overrides: Sequence[str] = (), measure: Measure | None = None) -> Simulation:
    """Read a file.

    Args:
        path: a YAML file.
        overrides: ``key=value`` each, for example ``policies.spares=2``.
        measure: reads the costs of the run that ``costs_from`` names.

    Raises:
        ConfigError: anything that is wrong with either, in one line that names the file and the key.
    """
    return parse(text_of(path), str(path), Path(path).parent, overrides, measure)


def parse(
    text: str,
    source: str = "<text>",
    folder: Path = Path("."),
    overrides: Sequence[str] = (),
    measure: Measure | None = None,
) -> Simulation:
    """Read the text of a file; ``source`` names it in errors. See ``load``."""

    def build(file: Any) -> Simulation:
        keys = OmegaConf.to_object(file)
        held = {item.name: getattr(keys, item.name) for item in fields(Simulation) if hasattr(keys, item.name)}
        said = {name: value for name, value in vars(keys.costs).items() if value is not None}
        measured: Mapping[str, float] = {}
        if keys.costs_from is not None and measure is not None:
            measured = measure(folder / keys.costs_from)
        costs = {**measured, **said}
        if "microbatch" not in costs:
            raise ConfigError("costs.microbatch is missing; give seconds, or a measured run as costs_from")
        return Simulation(**{**held, "costs": SimulatedCosts(**costs), "folder": folder})

    return structured(text, _FileKeys, build, source, overrides)

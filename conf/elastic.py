"""How a run survives: the typed elastic configuration, checked against itself when it is made."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum

from .chaos import Fault
from .errors import ConfigError
from .remedy import OnInstability, Remedy
from .schedule import BatchSchedule


class Reduction(StrEnum):
    """How gradients are summed over microbatches."""

    EXACT = "exact"
    FLOAT = "float"


class OnTrouble(StrEnum):
    """What is done about trouble that does not come from a failure."""

    STOP = "stop"
    SKIP = "skip"


class OnCorruption(StrEnum):
    """What is done about a rank that computes wrong."""

    ROLLBACK = "rollback"
    OBSERVE = "observe"


class Buffers(StrEnum):
    """What is done about buffers that a forward changes."""

    REFUSE = "refuse"
    FOLD = "fold"


class Stragglers(StrEnum):
    """What may be done about replicas that are slow, if it pays."""

    OBSERVE = "observe"
    WEIGH = "weigh"
    EVICT = "evict"
    AUTO = "auto"


class SnapshotSpread(StrEnum):
    """What is done where there are fewer nodes than each part of a snapshot is to have copies."""

    DEGRADE = "degrade"
    REFUSE = "refuse"


@dataclass(frozen=True)
class Timeouts:
    """Every deadline of a run, in seconds. They must be ordered; see ``__post_init__``.

    Attributes:
        heartbeat_interval: how often a rank's control thread says that it lives.
        heartbeat: silence after which a rank is suspected.
        node: silence of a node's sentinel, and of all ranks there, after which the node is suspected.
        probe: how long a suspect may take to answer before it is fenced and killed.
        confirm: how long a killed rank's end is awaited before the others go on without the proof.
        collective: upper bound of one collective; only the last resort, detection is faster.
        build: upper bound for building one communicator.
        recovery: upper bound of one attempt at recovery, as a rank waits for it.
        start: how long ranks may take to start and to reach ``begin``.
        finish: how long ranks may take to return after the last step.
        orphan: how long a rank lives without hearing from any controller.
        adopt: how long a controller that has taken over waits for ranks to come to it.
        storage: how long storage may take for one call, or for 16 MiB of a file, before it counts as down.
        driver: how long a finished run's controller waits for its driver to fetch the result.
    """

    heartbeat_interval: float = 0.5
    heartbeat: float = 5.0
    node: float = 1.5
    probe: float = 2.0
    confirm: float = 2.0
    collective: float = 60.0
    build: float = 15.0
    recovery: float = 120.0
    start: float = 300.0
    finish: float = 300.0
    orphan: float = 60.0
    adopt: float = 10.0
    storage: float = 60.0
    driver: float = 5.0

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if not isinstance(value, int | float) or not value > 0:
                raise ConfigError(f"timeouts.{item.name}={value!r} must be a positive number of seconds")
        order = (
            ("heartbeat_interval", "heartbeat"),
            ("heartbeat", "collective"),
            ("heartbeat_interval", "node"),
            ("node", "collective"),
            ("probe", "collective"),
            ("collective", "recovery"),
            ("build", "recovery"),
            ("adopt", "orphan"),
        )
        for lower, upper in order:
            if not getattr(self, lower) < getattr(self, upper):
                raise ConfigError(
                    f"timeouts.{lower}={getattr(self, lower):g} must be shorter than "
                    f"timeouts.{upper}={getattr(self, upper):g}"
                )
        if self.heartbeat < 2 * self.heartbeat_interval:
            raise ConfigError("timeouts.heartbeat must be at least two heartbeat intervals")


@dataclass(frozen=True)
class ElasticConfig:
    """How the run keeps its steps whole.

    Args:
        microbatches_per_step: B, the microbatches that every optimizer step sums, whatever the world is; or a
            schedule ``{step: B}``, each B from its step on.
        ranks_per_replica: R, ranks that hold one model copy together.
        spares: ranks that are started beside the members, stand by with their model built, and take the place of lost
            ones; they reserve what members reserve.
        reduction: ``exact`` (the sum does not depend on who computed what) or ``float`` (fp32 sums).
        workload: name of the policy that gives microbatches to replicas: ``balanced``, ``versatile`` (leftover replicas
            repeat others, so that a loss costs nothing), ``weighted`` (slow replicas owe less), or ``adaptive_world``
            (what the dead had is dropped; to compare with, not exact).
        recovery: name of the policy that answers a loss: ``auto`` (what delays training least, by measured times),
            ``swap`` (spares while there are any, else shrink), ``shrink``, or ``restart`` (everybody goes back to what
            was saved; to compare with).
        recovery_horizon: how much training ``auto`` looks at, in seconds.
        patience: how many seconds a run may wait for capacity while it has fewer ranks than its minimum.
        replace: whether another rank is asked for in the place of each that is lost; it joins when it is ready. Below
            the minimum that is done in any case.
        checkpoint_every: steps from one checkpoint on storage to the next; the last step always has one. 0 makes none,
            None as many as pay, by what one costs and how often all had to go back.
        keep: newest checkpoints that stay on storage; beside them stay those to which everybody may have to go back.
        snapshot_every: steps from one snapshot in the memory of the cluster to the next; 0 makes none, None
            as many as pay, where there is room; where there is none it is said, but with a number the run is refused.
        snapshot_copies: of each part of a snapshot, in different failure domains while there are so many.
        snapshot_spread: where there are fewer nodes than copies, ``degrade`` to one copy a node, which the state says,
            or ``refuse`` the run before its first step.
        snapshot_keep: newest whole snapshots that stay in memory, beside those to which everybody may have to go back.
        snapshot_gib: GiB of a node that snapshots may use at most; None for what Ray's object store has free there.
        hang: seconds without progress after which a rank that most others wait for is shut out; four times that in its
            data loader, ten times between steps, and never in a stage that ``ctx.stage`` announces. None is ten times
            what a step takes, and at least 30 s.
        check_every: steps from one check for silent corruption to the next: peers compare their state, one microbatch
            that others compute again, and one layer that is run once more, and at the end their last state; 0 for none.
        stragglers: what may be done about a slow replica, where it pays: ``observe`` (it is named, and training stays
            as it is), ``weigh`` (it owes less), ``evict`` (it leaves, and another one is taken or asked for), or
            ``auto``, whichever of these gains most.
        on_nonfinite: ``stop`` the run when a loss or gradient is not finite, or ``skip`` the whole step.
        monitor_every: steps from one look of the stability monitors at weights to the next; 0 for never. None is 100
            where there is anything to watch; with a number, a model in which there is nothing is refused.
        monitor_lag: steps between the two samples of weights that are compared, fewer than ``monitor_every``.
        envelope: file with what healthy runs of the same kind show, that every node can read: see
            ``monitors.envelope``. None goes by the run's own past.
        on_instability: what follows from an alarm: ``observe`` says it; ``hold`` also keeps the last saved state that
            was found healthy; ``rollback`` goes back to that and on with the ``remedy``; ``stop`` ends the run.
        remedy: what is different after that.
        on_poison: ``stop`` the run when a microbatch fails on two ranks, or ``skip`` that microbatch.
        on_corruption: ``rollback``: a rank that computes wrong is shut out, and everybody goes back to the newest state
            that is known to be right, from which the run goes on as if it had never been; or ``observe``: it is said.
        buffers: ``refuse`` a model whose forward changes a buffer, or ``fold`` the changes like a gradient.
        probe: in ``exact``, whether all members first compute one microbatch alike, and compare the bits. Without it
            only states are checked later: what is computed twice need not be the same.
        seed: root of the data order and of every RNG stream.
        chaos: planned faults, for rehearsals and tests.
        bucket_mib: size in MiB of one bucket of accumulated gradient.
        timeouts: all deadlines.

    Raises:
        ConfigError: a value that cannot work, in one line.
    """

    microbatches_per_step: int | Mapping[int, int]
    ranks_per_replica: int = 1
    spares: int = 0
    reduction: Reduction | str = Reduction.EXACT
    workload: str = "balanced"
    recovery: str = "auto"
    recovery_horizon: float = 600.0
    patience: float = 600.0
    replace: bool = True
    checkpoint_every: int | None = 0
    keep: int = 2
    snapshot_every: int | None = None
    snapshot_copies: int = 2
    snapshot_spread: SnapshotSpread | str = SnapshotSpread.DEGRADE
    snapshot_keep: int = 2
    snapshot_gib: float | None = None
    hang: float | None = None
    check_every: int = 128
    stragglers: Stragglers | str = Stragglers.OBSERVE
    on_nonfinite: OnTrouble | str = OnTrouble.STOP
    monitor_every: int | None = None
    monitor_lag: int = 10
    envelope: str | None = None
    on_instability: OnInstability | str = OnInstability.OBSERVE
    remedy: Remedy = field(default_factory=Remedy)
    on_poison: OnTrouble | str = OnTrouble.STOP
    on_corruption: OnCorruption | str = OnCorruption.ROLLBACK
    buffers: Buffers | str = Buffers.REFUSE
    probe: bool = True
    seed: int = 0
    chaos: tuple[Fault, ...] = ()
    bucket_mib: float = 8.0
    timeouts: Timeouts = field(default_factory=Timeouts)

    def __post_init__(self) -> None:
        held = self.microbatches_per_step
        if isinstance(held, Mapping):
            # Files may spell the steps as texts.
            held = {int(step) if str(step).isdigit() else step: count for step, count in held.items()}
            object.__setattr__(self, "microbatches_per_step", held)
        try:
            BatchSchedule.of(held)
        except ValueError as error:
            raise ConfigError(f"elastic.microbatches_per_step: {error}") from None
        for name, low in _WHOLE:
            value = getattr(self, name)
            if name in (*_BY_CADENCE, "monitor_every") and value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < low:
                raise ConfigError(f"elastic.{name}={value!r} must be a whole number of at least {low}")
        if self.ranks_per_replica != 1:
            raise ConfigError(
                f"elastic.ranks_per_replica={self.ranks_per_replica}: only replicas of one rank can train "
                "so far; set it to 1"
            )
        for name, kind in _NAMED.items():
            try:
                object.__setattr__(self, name, kind(str(getattr(self, name))))
            except ValueError:
                raise ConfigError(
                    f"elastic.{name}={getattr(self, name)!r} is not known; use one of: {', '.join(kind)}"
                ) from None
        for name in ("probe", "replace"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"elastic.{name}={getattr(self, name)!r} must be true or false")
        for name in ("recovery_horizon", "patience"):
            seconds = getattr(self, name)
            if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
                raise ConfigError(f"elastic.{name}={seconds!r} must be a number of seconds, at least 0")
        for name, known in (("workload", _WORKLOADS), ("recovery", _RECOVERIES)):
            if getattr(self, name) not in known:
                raise ConfigError(
                    f"elastic.{name}={getattr(self, name)!r} is not known; use one of: {', '.join(known)}"
                )
        if self.workload == "adaptive_world" and self.reduction is Reduction.EXACT:
            raise ConfigError(
                "elastic.workload=adaptive_world drops microbatches, which reduction=exact rules out; use float"
            )
        if self._weighs and self.workload not in ("balanced", "weighted"):
            raise ConfigError(
                f"elastic.stragglers={self.stragglers} gives slow replicas less to do, which elastic.workload="
                f"{self.workload} does not; use workload=weighted, or stragglers=evict or observe"
            )
        if not isinstance(self.seed, int) or not 0 <= self.seed < 2**63:
            raise ConfigError(f"elastic.seed={self.seed!r} must be a whole number in 0..2^63-1")
        if self.monitor_every and self.monitor_every <= self.monitor_lag:
            raise ConfigError(
                f"elastic.monitor_every={self.monitor_every} must be more than elastic.monitor_lag={self.monitor_lag}: "
                "one comparison ends before the next begins"
            )
        if self.on_instability != OnInstability.OBSERVE and self.monitor_every == 0:
            raise ConfigError(
                f"elastic.on_instability={self.on_instability} needs monitors, and elastic.monitor_every=0 has none"
            )
        if self.on_instability == OnInstability.ROLLBACK and not self.remedy.changes:
            raise ConfigError(
                "elastic.on_instability=rollback would go into the same trouble again: say in elastic.remedy what is "
                "to be different"
            )
        if self.on_instability in _GOING_BACK and not (self.snapshots or self.checkpoint_every != 0):
            raise ConfigError(
                f"elastic.on_instability={self.on_instability} needs saved states: set elastic.snapshot_every or "
                "elastic.checkpoint_every"
            )
        if self.snapshot_gib is not None and not self.snapshot_gib > 0:
            raise ConfigError(f"elastic.snapshot_gib={self.snapshot_gib!r} must be positive")
        if self.hang is not None and not self.hang > 0:
            raise ConfigError(f"elastic.hang={self.hang!r} must be a number of seconds above 0, or null")
        if not self.bucket_mib > 0:
            raise ConfigError(f"elastic.bucket_mib={self.bucket_mib!r} must be positive")
        object.__setattr__(self, "chaos", tuple(self.chaos))
        if not all(isinstance(fault, Fault) for fault in self.chaos):
            raise ConfigError("elastic.chaos must hold everstep.Fault values only")

    @property
    def sharing(self) -> str:
        """Name of the policy that gives microbatches to replicas, where shares may come to follow speeds."""
        return "weighted" if self._weighs else self.workload

    @property
    def _weighs(self) -> bool:
        return self.stragglers in (Stragglers.WEIGH, Stragglers.AUTO)

    @property
    def schedule(self) -> BatchSchedule:
        """B of every step."""
        return BatchSchedule.of(self.microbatches_per_step)

    @property
    def repeatable(self) -> bool:
        """Whether what is computed twice must have the same bits."""
        return self.probe and self.reduction is Reduction.EXACT

    @property
    def monitors(self) -> int:
        """Steps from one look of the stability monitors to the next; 0 if there are none."""
        return max(_MONITOR_EVERY, self.monitor_lag + 1) if self.monitor_every is None else self.monitor_every

    @property
    def goes_back(self) -> bool:
        """Whether saved states must be kept until stability monitors have judged them."""
        return self.on_instability in _GOING_BACK

    @property
    def watched(self) -> bool:
        """Whether a model in which there is nothing to watch is refused."""
        return bool(self.monitor_every) or self.on_instability is not OnInstability.OBSERVE

    @property
    def snapshots(self) -> bool:
        """Whether there are any in memory, if there is room."""
        return self.snapshot_every != 0


_WHOLE = (
    ("monitor_every", 0),
    ("monitor_lag", 1),
    ("ranks_per_replica", 1),
    ("spares", 0),
    ("checkpoint_every", 0),
    ("keep", 1),
    ("snapshot_every", 0),
    ("snapshot_copies", 1),
    ("snapshot_keep", 1),
    ("check_every", 0),
)
_MONITOR_EVERY = 100
_GOING_BACK = (OnInstability.HOLD, OnInstability.ROLLBACK)
_BY_CADENCE = ("checkpoint_every", "snapshot_every")
_RECOVERIES = ("auto", "swap", "shrink", "restart")
_WORKLOADS = ("balanced", "versatile", "weighted", "adaptive_world")
_NAMED: dict[str, type[StrEnum]] = {
    "reduction": Reduction,
    "on_nonfinite": OnTrouble,
    "on_poison": OnTrouble,
    "on_corruption": OnCorruption,
    "buffers": Buffers,
    "snapshot_spread": SnapshotSpread,
    "on_instability": OnInstability,
    "stragglers": Stragglers,
}

"""How far a rank has come, as those see it who watch it from outside, and how long a standstill may last.

The record is what SCOUT's observer reads (arXiv 2608.11034): the place in the training, what is done there, and the
collective that was entered last. No torch here, since sentinels read it as well.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from math import inf

# What a process is that cannot move, in the words of the kernel.
HALTED = frozenset({"stopped", "traced"})
# Stages in which a standstill may be a hang; whoever announces another one says that it takes long.
TRAINING = "training"
# A limit that adapts is this many times as long as a step takes.
STEPS = 10.0


class Activity(StrEnum):
    """What the training thread is at."""

    OUTSIDE = "user code between steps"
    LOADING = "its data loader"
    COMPUTING = "forward and backward"
    REDUCING = "the reduction"
    SAVING = "the wait for a copy of its state"


@dataclass(frozen=True)
class Pending:
    """The newest collective that a rank has entered.

    Attributes:
        group: of processes, by name.
        sequence: how many this rank has entered in that group, this one included.
        kind: "all-reduce", ...
        elements: of its input on this rank.
        dtype: of its input.
        trail: checksum of all that it has entered in that group so far, each with its kind, elements and dtype, in
            order: several are under way at once, and one that is unlike may not be the newest.
    """

    group: str
    sequence: int
    kind: str
    elements: int
    dtype: str
    trail: int = 0

    def __str__(self) -> str:
        return f"{self.kind} number {self.sequence} of group {self.group}, {self.elements} x {self.dtype}"


@dataclass(frozen=True)
class ProgressRecord:
    """What one rank was at when it was looked at.

    Attributes:
        step: the first optimizer step that is not decided here.
        unit: of work before it: evaluations count.
        attempt: a void attempt at a step is made again.
        activity: of the training thread.
        stage: "training", or what the user's function has announced, such as "evaluation".
        microbatch: index of that under way; None outside of one.
        pending: the newest collective of the reduction under way; None outside of one.
        unchanged: for how many seconds all of the above has been the same, on this rank's own clock.
        process: what the kernel says of its process, if somebody has asked: "sleeping", "stopped", ...
    """

    step: int
    unit: int = 0
    attempt: int = 0
    activity: Activity = Activity.OUTSIDE
    stage: str = TRAINING
    microbatch: int | None = None
    pending: Pending | None = None
    unchanged: float = 0.0
    process: str = ""

    @property
    def reached(self) -> tuple[int, int, int, bool, int]:
        """Ordered as training goes on: a rank that is behind another one is awaited there, sooner or later."""
        entered = self.pending.sequence if self.pending else 0
        arrived = self.activity is Activity.REDUCING
        return self.step, self.unit, self.attempt, arrived, entered if arrived else 0

    def __str__(self) -> str:
        place = f"step {self.step}" if self.microbatch is None else f"microbatch {self.microbatch} of step {self.step}"
        what = str(self.pending) if self.pending and self.activity is Activity.REDUCING else self.activity.value
        stage = "" if self.stage == TRAINING else f", stage {self.stage!r}"
        return f"{what} at {place}{stage}, unchanged for {self.unchanged:.1f} s"


@dataclass(frozen=True)
class Limits:
    """How many seconds a rank may stand still.

    Attributes:
        hang: in a microbatch, in the reduction, or while its state is copied.
        data: in its data loader.
        outside: in what the user's function does between steps, such as a leader that writes files.
        stages: by the name of an announced stage, in any activity; one that is not here may take for ever.

    Raises:
        ValueError: a limit that is not above 0, or one that contradicts ``hang``, in one line.
    """

    hang: float = inf
    data: float = inf
    outside: float = inf
    stages: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        named = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "stages"}
        named |= {f"stages[{name!r}]": limit for name, limit in self.stages.items()}
        for name, limit in named.items():
            if not limit > 0:
                raise ValueError(f"limits.{name}={limit!r} must be a number of seconds above 0")
            if limit < self.hang:
                raise ValueError(
                    f"limits.{name}={limit:g} is shorter than limits.hang={self.hang:g}: what is known to take long "
                    "would count as a hang before a microbatch does"
                )

    def of(self, record: ProgressRecord) -> float:
        """The limit for what this rank is at, in seconds."""
        if record.stage != TRAINING:
            return self.stages.get(record.stage, inf)
        match record.activity:
            case Activity.LOADING:
                return self.data
            case Activity.OUTSIDE:
                return self.outside
        return self.hang

    def exceeded(self, record: ProgressRecord) -> bool:
        """Whether this rank has stood still for too long."""
        return record.unchanged > self.of(record)


# Whatever steps take, nobody is called stuck sooner.
LEAST = Limits(hang=30.0, data=120.0, outside=300.0)


def at_most(hang: float) -> Limits:
    """Limits in the usual proportions, from the seconds that a rank may stand still in a microbatch.

    Raises:
        ValueError: ``hang`` is not above 0.
    """
    return Limits(hang, hang * LEAST.data / LEAST.hang, hang * LEAST.outside / LEAST.hang)


def adapted(step_seconds: float | None, least: Limits = LEAST) -> Limits:
    """Limits by what a step takes: ``STEPS`` times as long, and at least ``least``.

    Args:
        step_seconds: what a step of this run takes, such as the median of the last ones; None before it is known: the
            first step may compile, so nobody is stuck yet.
        least: what holds however short steps are; its ``stages`` hold as they are.

    Raises:
        ValueError: a time that is negative or no number.
    """
    if step_seconds is None:
        return Limits()
    if not 0 <= step_seconds < inf:
        raise ValueError(f"step_seconds={step_seconds!r} must be a finite number of seconds, at least 0")
    usual = STEPS * step_seconds
    return Limits(
        max(least.hang, usual),
        max(least.data, usual),
        max(least.outside, usual),
        {name: max(limit, least.hang, usual) for name, limit in least.stages.items()},
    )

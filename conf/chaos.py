"""Planned faults: where in a step, on whom, and of what kind. Their execution is in ``actors.faults``."""

from dataclasses import dataclass
from enum import StrEnum

from .errors import ConfigError


class FaultPoint(StrEnum):
    """A named place in the life of a rank at which a fault can be injected."""

    BEFORE_FORWARD = "before_forward"
    IN_FORWARD = "in_forward"
    IN_BACKWARD = "in_backward"
    FIRST_BUCKET = "first_bucket"
    MIDDLE_BUCKET = "middle_bucket"
    LAST_BUCKET = "last_bucket"
    IN_TRANSFER = "in_transfer"
    BEFORE_VOTE = "before_vote"
    IN_VOTE = "in_vote"
    AFTER_VOTE = "after_vote"
    IN_OPTIMIZER = "in_optimizer"
    IN_REPORT = "in_report"
    IN_REBUILD = "in_rebuild"
    IN_RESTORE = "in_restore"
    IN_EXTENSION = "in_extension"
    IN_SNAPSHOT = "in_snapshot"


class FaultKind(StrEnum):
    """What happens to the target process."""

    SIGKILL = "sigkill"
    SIGSTOP = "sigstop"
    EXCEPTION = "exception"


class FaultTarget(StrEnum):
    """Which process is hit."""

    RANK = "rank"
    SPARE = "spare"
    VAULT = "vault"


_PER_MICROBATCH = {
    FaultPoint.BEFORE_FORWARD,
    FaultPoint.IN_FORWARD,
    FaultPoint.IN_BACKWARD,
    FaultPoint.IN_EXTENSION,
}
_OF_VAULTS = (FaultPoint.IN_SNAPSHOT, FaultPoint.IN_RESTORE)


@dataclass(frozen=True)
class Fault:
    """One planned fault.

    Args:
        step: optimizer step (0-based) in which it fires.
        replica: index of the replica that is hit, as numbered in the first world. Whoever takes its place later is
            spared. Ranks that are started without a place, as spares are, have the numbers that follow, in the order in
            which they are started; they are hit if the target is ``spare``, in the steps that they take part in. Vaults
            have numbers of their own, in the order in which they are started; they are hit while they get a part of
            this step (``in_snapshot``) or give it to a rank that restores it (``in_restore``).
        coordinate: place inside the replica; 0 for a spare.
        point: a ``FaultPoint`` or its name.
        kind: a ``FaultKind`` or its name.
        target: a ``FaultTarget`` or its name.
        microbatch: only at the n-th microbatch (0-based) that the rank computes in this step;
            None means the first. Only for points inside a microbatch.

    Raises:
        ConfigError: an unknown name, a negative number, or ``microbatch`` at a point outside a microbatch.
    """

    step: int
    replica: int
    coordinate: int = 0
    point: FaultPoint | str = FaultPoint.IN_BACKWARD
    kind: FaultKind | str = FaultKind.SIGKILL
    target: FaultTarget | str = FaultTarget.RANK
    microbatch: int | None = None

    def __str__(self) -> str:
        place = f"{self.point}" if self.microbatch is None else f"{self.point} of its microbatch {self.microbatch}"
        return f"{self.kind} of {self.target} {self.replica}.{self.coordinate} at step {self.step} {place}"

    def __post_init__(self) -> None:
        for field, names in (("point", FaultPoint), ("kind", FaultKind), ("target", FaultTarget)):
            value = getattr(self, field)
            try:
                object.__setattr__(self, field, names(str(value)))
            except ValueError:
                known = ", ".join(names)
                raise ConfigError(f"Fault.{field}={value!r} is not known; use one of: {known}") from None
        for field in ("step", "replica", "coordinate"):
            if getattr(self, field) < 0:
                raise ConfigError(f"Fault.{field}={getattr(self, field)} must not be negative")
        if self.target is FaultTarget.VAULT and self.point not in _OF_VAULTS:
            known = ", ".join(_OF_VAULTS)
            raise ConfigError(f"Fault.point={str(self.point)!r} is nothing that a vault does; use one of: {known}")
        if self.microbatch is not None:
            if self.point not in _PER_MICROBATCH:
                raise ConfigError(f"Fault.microbatch is only for points inside a microbatch, not {self.point}")
            if self.microbatch < 0:
                raise ConfigError(f"Fault.microbatch={self.microbatch} must not be negative")

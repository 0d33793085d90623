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
    """What happens to the target process, or to a number that it computes."""

    SIGKILL = "sigkill"
    SIGSTOP = "sigstop"
    EXCEPTION = "exception"
    FLIP = "flip"
    FLIP_MOMENT = "flip_moment"


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
_FLIPPED = {
    FaultKind.FLIP: (FaultPoint.IN_FORWARD, FaultPoint.IN_BACKWARD, FaultPoint.IN_OPTIMIZER),
    FaultKind.FLIP_MOMENT: (FaultPoint.IN_OPTIMIZER,),
}
_BITS = 64
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
        kind: a ``FaultKind`` or its name. A ``flip`` changes one bit of one number of the middle layer: of its output
            (``in_forward``), of its weight's gradient before that is summed (``in_backward``), or of the weight as the
            optimizer leaves it (``in_optimizer``); ``flip_moment`` one of what the optimizer keeps beside the weight.
        target: a ``FaultTarget`` or its name.
        microbatch: only at the n-th microbatch (0-based) that the rank computes in this step;
            None means the first. Only for points inside a microbatch.
        bit: that a flip changes, from the lowest on: in float32 the fraction has 0..22, the exponent 23..30, the sign
            31; whoever has fewer has its highest one changed.
        recurring: whether a flip strikes again, at each such place from ``step`` on, and in each microbatch.

    Raises:
        ConfigError: an unknown name, a negative number, ``microbatch`` at a point outside a microbatch, a flip without
            a bit or where it changes nothing, or what belongs to flips in another kind.
    """

    step: int
    replica: int
    coordinate: int = 0
    point: FaultPoint | str = FaultPoint.IN_BACKWARD
    kind: FaultKind | str = FaultKind.SIGKILL
    target: FaultTarget | str = FaultTarget.RANK
    microbatch: int | None = None
    bit: int | None = None
    recurring: bool = False

    def __str__(self) -> str:
        place = f"{self.point}" if self.microbatch is None else f"{self.point} of its microbatch {self.microbatch}"
        kind = f"{self.kind}" if self.bit is None else f"{self.kind} of bit {self.bit}"
        when = f"from step {self.step} on" if self.recurring else f"at step {self.step}"
        return f"{kind} of {self.target} {self.replica}.{self.coordinate} {when} {place}"

    @property
    def numeric(self) -> bool:
        """Whether it changes a number, and nothing else happens."""
        return self.kind in _FLIPPED

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
        if self.numeric:
            self._check_flip(FaultKind(self.kind))
        elif self.bit is not None or self.recurring:
            raise ConfigError(f"Fault.bit and Fault.recurring are only for {', '.join(_FLIPPED)}, not {self.kind}")
        if self.microbatch is not None:
            if self.point not in _PER_MICROBATCH:
                raise ConfigError(f"Fault.microbatch is only for points inside a microbatch, not {self.point}")
            if self.microbatch < 0:
                raise ConfigError(f"Fault.microbatch={self.microbatch} must not be negative")

    def _check_flip(self, kind: FaultKind) -> None:
        if self.bit is None or not 0 <= self.bit < _BITS:
            raise ConfigError(f"Fault.bit={self.bit} must be a whole number in 0..{_BITS - 1} for a {kind}")
        if self.point not in _FLIPPED[kind]:
            raise ConfigError(
                f"Fault.point={str(self.point)!r} has no number for a {kind}: {', '.join(_FLIPPED[kind])}"
            )
        if self.recurring and self.microbatch is not None:
            raise ConfigError("Fault.microbatch must be null in a recurring flip, which strikes in each one")

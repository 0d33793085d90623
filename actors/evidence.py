"""What a rank has computed, as signatures, for peers that must have computed the same: how corruption shows."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ..policies.world import Generation


class Check(StrEnum):
    """What peers are compared in."""

    STATE = "state"
    AUDIT = "audit"
    REPLAY = "replay"


@dataclass(frozen=True)
class Evidence:
    """What one rank brings to one check. It is sent once and never repeated: what is lost is missing.

    Attributes:
        check: ``state``: parameters, buffers and the optimizer's state between two steps. ``audit``: the gradient of
            one microbatch. ``replay``: one layer and a part of an optimizer, run once more on copies.
        step: optimizer steps that the state had taken; an audited microbatch belongs to the step that follows.
        generation: in which it was computed.
        among: replicas that bring the same, ascending; empty for all of the world, which may be many.
        signatures: of 64 bits, signed, by what they are of: a tensor, a microbatch, a part of a replay.
        uncovered: what this check cannot look at, by name.
        norm: with the state, the largest |gradient| that this rank added to the step before; 0 if it added none.
    """

    incarnation: str
    check: Check
    step: int
    generation: Generation
    among: tuple[int, ...]
    signatures: Mapping[str, int] = field(default_factory=dict)
    uncovered: tuple[str, ...] = ()
    norm: float = 0.0

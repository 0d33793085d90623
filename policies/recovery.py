"""How to go on after a loss. Pure: facts in, a decision with its reason out."""

from dataclasses import dataclass
from enum import StrEnum


class Remedy(StrEnum):
    """What is done about a loss."""

    SHRINK = "shrink"
    REFORM = "reform"
    END = "end"


@dataclass(frozen=True)
class LossFacts:
    """What is known when a loss must be answered.

    Attributes:
        members: replicas before the loss.
        survivors: replicas that are whole now.
        minimum: fewest replicas that may train.
    """

    members: int
    survivors: int
    minimum: int


@dataclass(frozen=True)
class RecoveryDecision:
    """The remedy, and one line that says why."""

    remedy: Remedy
    reason: str


def decide(facts: LossFacts) -> RecoveryDecision:
    """Shrink to the survivors while they suffice; the ``auto`` and ``shrink`` policies agree without spares."""
    if facts.survivors == 0:
        return RecoveryDecision(Remedy.END, f"all {facts.members} replicas are lost")
    if facts.survivors < facts.minimum:
        return RecoveryDecision(
            Remedy.END,
            f"{facts.survivors} of {facts.members} replicas are left, the minimum is {facts.minimum}",
        )
    if facts.survivors == facts.members:
        return RecoveryDecision(Remedy.REFORM, "nobody is lost: the same members form a new group")
    return RecoveryDecision(Remedy.SHRINK, f"{facts.survivors} of {facts.members} replicas go on")

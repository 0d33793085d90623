"""What a stability monitor has seen at one place of a model, as plain numbers that can be sent, saved and judged."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Reading:
    """The numbers of one place at one step.

    Attributes:
        monitor: ``attention``, ``router`` or ``baseline``.
        step: whose weights, after its update, the numbers belong to.
        layer: path of the module in the model; empty for the model as a whole.
        head: index of the query head; None where there are no heads.
        numbers: by name. One that is not finite is kept: it is a finding.
    """

    monitor: str
    step: int
    layer: str
    head: int | None
    numbers: Mapping[str, float]

"""What ranks say of the stability of the training."""

from dataclasses import dataclass

from ..monitors.certification import Trust
from ..monitors.envelope import Alarm


@dataclass(frozen=True)
class StabilityTold:
    """What the stability monitors say of the state that a rank holds; every rank comes to say the same.

    Attributes:
        watched: what they look at, or why there is nothing, in one line.
        changes: number of the newest change that this rank holds, 0 if there is none.
        trust: how many steps the states had taken that were found healthy.
        alarms: the first ones of this course.
        problem: why a look of this rank has failed, in one line; empty if none has.
    """

    watched: str
    changes: int = 0
    trust: Trust = Trust()
    alarms: tuple[Alarm, ...] = ()
    problem: str = ""

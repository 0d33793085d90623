"""What follows from an alarm of the stability monitors."""

from collections.abc import Collection
from dataclasses import dataclass

from ..conf.remedy import OnInstability, Remedy
from .changes import Change, following


@dataclass(frozen=True)
class Reaction:
    """What is done, and why, in one line.

    Attributes:
        hold: step of the saved state that is to stay, None if there is none.
        change: what is different once everybody has gone back to the step of it; None if nobody goes back.
        stop: whether the run ends.
    """

    reason: str
    hold: int | None = None
    change: Change | None = None
    stop: bool = False


def react(
    on: OnInstability, remedy: Remedy, alarm: str, healthy: int | None, known: int, made: Collection[Change]
) -> Reaction:
    """Choose.

    Args:
        alarm: one line.
        healthy: steps that the newest saved state had taken which is known to be healthy; None if there is none.
        known: number of the newest change that ranks hold, also of earlier runs of this name.
        made: changes of this run.
    """
    if on is OnInstability.STOP:
        return Reaction(f"the run stops, as elastic.on_instability says: {alarm}", stop=True)
    if on is OnInstability.OBSERVE:
        return Reaction("nothing: elastic.on_instability is observe")
    if healthy is None:
        return Reaction("nothing: no saved state is known to be healthy")
    if on is OnInstability.HOLD:
        return Reaction(f"the state after {healthy} steps, which was healthy, is kept", hold=healthy)
    if len(made) >= remedy.times:
        return Reaction(f"nothing more: everybody went back {len(made)} times already", hold=healthy)
    number = max(known + 1, following(made))
    change = Change(number, healthy, alarm, remedy.skip_steps, remedy.learning_rate, dict(remedy.switches))
    return Reaction(f"everybody goes back to the state after {healthy} steps; {change}", hold=healthy, change=change)

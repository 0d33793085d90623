"""Everybody goes back to a state that is trusted: why, to which, and what that makes of what was heard and saved since.

It is a recovery like another one: all members promise to decide nothing more, report, and are given a generation, which
this one begins with a saved state, or with the initial one. Whoever joins in it takes that state as well.
"""

from ...policies.values import changed
from . import recovery, trust
from .distrust import Rollback
from .events import Action, Record
from .state import State

Step = tuple[State, list[Action]]


def go_back(state: State, now: float, kind: str, reason: str, cause: str, to: int | None = None) -> Step:
    """What the members hold is wrong: have all of them go back.

    Args:
        kind: what was found, ``corruption`` or another name of a ledger in ``state.trust``.
        reason: why, in one line; it is shown with the state that is taken.
        cause: of the recovery, in one line.
        to: the newest state that may be taken, by its steps; None for the newest that is trusted.
    """
    world = state.world
    if world is None:
        return state, []
    to = trust.newest_trusted(state, kind) if to is None else to
    pending = state.rollback
    if pending is not None and pending.opened is None:
        to = min(to, pending.to)
    state = changed(state, rollback=Rollback(kind, reason, to))
    record = Record("going back", world.generation, {"kind": kind, "to": to, "reason": reason})
    state, actions = recovery.begin(state, cause, now)
    return state, [record, *actions]

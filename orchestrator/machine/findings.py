"""Verdicts of all who watch, in one form: the newest are kept for ``state()``, and each has a line in the journal."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ...policies.values import changed
from ..view import VerdictRecord
from .events import Action, Record
from .past import KEPT
from .state import State


def noted(
    state: State,
    now: float,
    kind: str,
    outcome: str,
    reason: str,
    *,
    step: int | None = None,
    who: Sequence[str] = (),
    evidence: Mapping[str, Any] | None = None,
    done: str,
) -> tuple[State, list[Action]]:
    """The state with one more verdict, and its line.

    Args:
        kind, outcome, reason, step, evidence, done: as in ``VerdictRecord``; without a step, that of the rank which
            is furthest.
        who: incarnations that are named.
    """
    if step is None:
        step = max((rank.position.step for rank in state.members), default=0)
    titles = tuple(state.ranks[name].title for name in who)
    record = VerdictRecord(state.settings.epoch + now, step, kind, outcome, reason, titles, evidence or {}, done)
    state = changed(state, verdicts=(*state.verdicts, record)[-KEPT:])
    generation = state.world.generation if state.world else None
    return state, [Record("verdict", generation, asdict(record))]

"""What checks have said of the states of the run, by what they look for, and what that means for saved ones."""

from collections.abc import Mapping

from ...actors.messages import Restore
from ...actors.node.vault_messages import VAULT
from ...actors.saved.sources import START
from ...monitors.certification import Trust, rolled_back
from ...policies.retention import Marks, Undone
from ...policies.values import changed
from ...policies.world import Generation
from .events import Action, Undo
from .state import State

CORRUPTION, STABILITY = "corruption", "stability"
_UNKNOWN = Trust()


def trust_of(state: State, kind: str) -> Trust:
    """What is known of one kind."""
    return state.trust.get(kind, _UNKNOWN)


def trusted(state: State, kind: str, trust: Trust) -> State:
    """The state with another ledger of one kind."""
    return changed(state, trust={**state.trust, kind: trust})


def newest_trusted(state: State, kind: str) -> int:
    """The newest step whose state is known to be right, best by a check and the one after it; 0 is the start."""
    trust = trust_of(state, kind)
    return trust.verified if trust.verified is not None else trust.candidate or 0


def begun_with(state: State, step: int) -> State:
    """A run goes on from a saved state: nobody can know better than that it was right."""
    held = {kind: Trust(verified=step, checked=step) for kind, every in state.settings.cadences.items() if every}
    return changed(state, trust={**state.trust, **held})


def went_back(state: State, step: int) -> State:
    """All ledgers, once everybody has gone back to the state of ``step``."""
    return changed(state, trust={kind: rolled_back(held, step) for kind, held in state.trust.items()})


def marks(state: State) -> Marks:
    """Which saved states must not be dropped, whatever is newer."""
    held = (mark for trust in state.trust.values() for mark in (trust.verified, trust.candidate) if mark is not None)
    awaited = (
        (every, trust_of(state, kind).checked or 0) for kind, every in sorted(state.settings.cadences.items()) if every
    )
    wanted = (state.rollback.to,) if state.rollback is not None else ()
    return Marks(tuple(sorted({*held, *wanted})), tuple(awaited))


def source_of(state: State, to: int) -> Restore:
    """The newest saved state that is not younger than that of step ``to``; the start of the run, if there is none."""
    held = ((step, source) for source, steps in state.held.items() for step in steps if 0 < step <= to)
    # Memory is quicker.
    step, source = max(held, key=lambda one: (one[0], one[1] == VAULT), default=(0, START))
    return Restore(source, step)


def pending(state: State) -> bool:
    """Whether everybody is to go back to what is trusted, and has not been told so yet."""
    return state.rollback is not None and state.rollback.opened is None


def carried_out(state: State, restore: Restore, generation: Generation) -> tuple[State, list[Action]]:
    """A generation was opened in which everybody goes back; if that is for want of trust, nothing since counts."""
    state = went_back(state, restore.step)
    if not pending(state):
        return state, []
    assert state.rollback is not None
    held = {source: tuple(step for step in steps if step <= restore.step) for source, steps in state.held.items()}
    saved = {source: max(steps) for source, steps in held.items() if steps}
    rollback = changed(state.rollback, opened=generation)
    # The records of these steps come again.
    recorded, pace = min(state.recorded, restore.step), ()
    undone = Undone(restore.step, generation)
    state = changed(state, rollback=rollback, held=held, saved=saved, recorded=recorded, pace=pace, undone=undone)
    return state, [Undo(undone)]


def lines(state: State) -> Mapping[str, str]:
    """By kind, what is known of saved states, for people."""
    return {kind: _line(trust, state.uncovered if kind == CORRUPTION else ()) for kind, trust in state.trust.items()}


def _line(trust: Trust, uncovered: tuple[str, ...]) -> str:
    parts = [f"verified up to step {trust.verified}" if trust.verified is not None else "nothing is verified yet"]
    if trust.candidate is not None:
        parts.append(f"candidate step {trust.candidate}")
    if trust.blocked:
        parts.append(f"blocked: {trust.blocked}")
    if uncovered:
        more = f" and {len(uncovered) - 3} more" if len(uncovered) > 3 else ""
        parts.append(f"not covered: {', '.join(uncovered[:3])}{more}")
    return "; ".join(parts)

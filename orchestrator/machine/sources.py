"""Where state was looked for when everybody began, or went back: what ``state()`` says of it."""

from ...actors.messages import Restore
from ...policies.values import changed
from .events import Found, Lost
from .state import State

KINDS = ("vault", "storage")
_UNREADABLE = "cannot be read"


def began(state: State, event: Found) -> State:
    """Before the first generation only what outlives a run can hold something."""
    held = f"step {event.step}, taken" if event.step else "it holds nothing to go on from"
    tried = (*event.skipped, held)
    return changed(state, sources=tuple(f"{event.source}: {text}" for text in tried))


def went_back(state: State, restore: Restore) -> State:
    """Everybody is told to take a saved state."""
    chain = bool(state.sources) and _UNREADABLE in state.sources[-1]
    tried = state.sources if chain else ("peers: nobody who lives holds the state, or all are to go back",)
    others = (kind for kind in KINDS if kind != restore.source and not any(text.startswith(kind) for text in tried))
    held = ((kind, state.saved.get(kind)) for kind in others)
    passed = (f"{kind}: {'it holds nothing' if step is None else f'step {step} is left'}" for kind, step in held)
    tried = (*tried, *passed, f"{restore.source}: step {restore.step}, taken")
    return changed(state, sources=tried, setbacks=restore.times)


def failed(state: State, event: Lost) -> State:
    """What everybody was to take last cannot be read."""
    return changed(
        state, sources=(*state.sources[:-1], f"{event.source}: step {event.step} {_UNREADABLE}: {event.reason}")
    )

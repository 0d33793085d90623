"""A run that goes on from what an earlier life of it has saved."""

from ...policies.values import changed
from . import recovery, sources, trust
from .events import Action, Found, Lost, Record, Saved
from .state import State
from .verdicts import fail


def found(state: State, event: Found) -> tuple[State, list[Action]]:
    """Saved states were looked for, before the first generation."""
    state = sources.began(changed(state, warnings=(*state.warnings, *event.skipped)), event)
    facts = {"source": event.source, "step": event.step, "skipped": list(event.skipped)}
    record = Record("found", facts=facts)
    if event.refused:
        state, actions = fail(state, event.refused)
        return state, [record, *actions]
    if event.step:
        state = changed(state, resume=event, saved={**state.saved, event.source: event.step})
        state = trust.begun_with(_held(state, event.source, (event.step,)), event.step)
    return state, [record]


def saved(state: State, event: Saved) -> State:
    """Another state is whole."""
    undone = state.undone
    if undone is not None and event.generation is not None and undone.covers(event.step, event.generation):
        # It was on its way while everybody went back from it.
        return state
    newest = max(event.step, state.saved.get(event.source, 0))
    known = state.held.get(event.source, ())
    kept = tuple(sorted({*known, event.step})) if event.kept is None else event.kept
    return _held(changed(state, saved={**state.saved, event.source: newest}), event.source, kept)


def _held(state: State, source: str, steps: tuple[int, ...]) -> State:
    return changed(state, held={**state.held, source: steps})


def lost(state: State, event: Lost, now: float) -> tuple[State, list[Action]]:
    """Nobody can go on from what everybody was to go back to: an older state, or another way, is chosen."""
    saved = {source: step for source, step in state.saved.items() if (source, step) != (event.source, event.step)}
    if event.older is not None:
        saved.setdefault(event.source, event.older)
    known = state.held.get(event.source, ())
    kept = tuple(step for step in known if step != event.step) if event.kept is None else event.kept
    state = _held(state, event.source, kept)
    restore = state.opened.restore if state.opened else None
    taken = restore is not None and (restore.source, restore.step) == (event.source, event.step)
    if not taken and state.saved.get(event.source, 0) < event.step:
        # Everybody has gone back to before it: nobody counts on it.
        return changed(state, saved=saved), []
    text = f"what {event.source} holds of step {event.step} cannot be read: {event.reason}"
    state = changed(state, saved=saved, warnings=(*state.warnings, text))
    record = Record("warning", facts={"text": text})
    if not taken:
        return state, [record]
    state, actions = recovery.begin(sources.failed(state, event), text, now)
    return state, [record, *actions]


def refusal(state: State) -> str | None:
    """Why the ranks that are ready cannot go on from what was found; None if they can."""
    resume = state.resume
    ready = next((rank.ready for rank in state.living if rank.ready is not None), None)
    if resume is None or ready is None:
        return None
    run = f"run {state.settings.run!r}"
    if ready.steps < resume.step:
        return f"{run} has taken {resume.step} steps already, and is to take {ready.steps} in all: ask for more"
    for key, now in identity(state).items():
        then = resume.identity.get(key, now)
        if then != now:
            return (
                f"{run} was begun with another {key} ({then[:16]} then, {now[:16]} now): choose another name for "
                "another run"
            )
    return None


def identity(state: State) -> dict[str, str]:
    """Facts that a run must share to go on from another one's state, as the ranks tell them."""
    ready = next((rank.ready for _, rank in sorted(state.ranks.items()) if rank.ready is not None), None)
    if ready is None:
        return {}
    return {**ready.facts, **{f"initial state of {name}": digest for name, digest in ready.signatures.items()}}

"""What a later controller life must know of this one; the journal has it before anything is done about it."""

from .events import Record
from .look import metrics
from .past import WRITE, Ending
from .state import State

_PLAIN = ("target", "first_cause", "decision", "poison", "leaving", "draining", "saved")
_GROWING = ("recoveries", "faults_fired", "warnings", "raised")


def note(before: State, after: State) -> list[Record]:
    """One record of what has changed, none if nothing has; ``past.fold`` reads it."""
    changed: dict[str, object] = {}
    old, new = vars(before), vars(after)
    for name in _PLAIN:
        if new[name] is not old[name]:
            changed[name] = new[name]
    for name in _GROWING:
        if new[name] is not old[name]:
            changed[name] = new[name][len(old[name]) :]
    if after.phase.ended and not before.phase.ended:
        changed["ending"] = Ending(after.phase, after.error, after.traceback, metrics(after))
    facts = {name: WRITE[name](value) if name in WRITE else value for name, value in changed.items()}
    return [Record("memory", facts=facts)] if facts else []

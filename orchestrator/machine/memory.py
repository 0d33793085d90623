"""What a later controller life must know of this one; the journal has it before anything is done about it."""

from collections.abc import Mapping

from ...actors.node.vault_messages import VAULT
from ...policies.quarantine import Ledger, NodeRecord
from ...policies.values import changed as with_fields
from .events import Record
from .look import metrics
from .past import WRITE, Ending, Past
from .state import State

_PLAIN = (
    "target",
    "first_cause",
    "decision",
    "poison",
    "leaving",
    "draining",
    "saved",
    "cadence",
    "setbacks",
    "sources",
    "changes",
    "alarmed",
    "trust",
    "rollback",
    "undone",
)
_GROWING = ("recoveries", "faults_fired", "warnings", "raised")
# The others mean something only beside what living ranks say.
_INHERITED = tuple(name for name in (*_PLAIN, *_GROWING) if name not in ("target", "leaving"))


def inherited(state: State, past: Past, shift: float = 0.0) -> State:
    """A new state with what earlier lives have noted.

    Args:
        shift: from seconds since the epoch to this life's clock.
    """
    target = state.settings.replicas if past.target is None else past.target
    failures = Ledger({node: with_fields(held, at=held.at + shift) for node, held in past.failures.items()})
    kept = {name: getattr(past, name) for name in _INHERITED}
    return with_fields(state, target=target, failures=failures, verdicts=past.verdicts, **kept)


def note(before: State, after: State) -> list[Record]:
    """One record of what has changed, none if nothing has; ``past.fold`` reads it."""
    changed: dict[str, object] = {}
    old, new = vars(before), vars(after)
    for name in _PLAIN:
        if new[name] is not old[name] and _lasting(name, new[name]) != _lasting(name, old[name]):
            changed[name] = new[name]
    for name in _GROWING:
        if new[name] is not old[name]:
            changed[name] = new[name][len(old[name]) :]
    if fell := _fallen(before, after):
        changed["failures"] = fell
    if (guessed := _guessed(after)) != _guessed(before):
        changed["guessed"] = guessed
    if after.phase.ended and not before.phase.ended:
        changed["ending"] = Ending(after.phase, after.error, after.traceback, metrics(after))
    facts = {name: WRITE[name](value) if name in WRITE else value for name, value in changed.items()}
    return [Record("memory", facts=facts)] if facts else []


def _lasting(name: str, value: object) -> object:
    """What of it is worth a line: which snapshot is the newest changes with every step, and vaults tell it."""
    if name != "saved":
        return value
    assert isinstance(value, Mapping)
    return {source: step for source, step in value.items() if source != VAULT}, VAULT in value


def _fallen(before: State, after: State) -> dict[str, NodeRecord]:
    """Nodes that have failed."""
    if after.failures is before.failures:
        return {}
    known = before.failures.records
    return {node: held for node, held in after.failures.records.items() if held != known.get(node)}


def _guessed(state: State) -> bool:
    """Whether the cause of a recovery is a failed collective, and no death explains it yet."""
    return state.recovery is not None and state.recovery.guessed

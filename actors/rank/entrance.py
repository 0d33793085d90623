"""How a rank comes into the loop: it waits for a generation, and takes the state before its position."""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...conf.chaos import FaultPoint
from ...conf.elastic import Timeouts
from ...conf.errors import SavedStateError
from ...policies.changes import joined
from ...policies.world import Generation
from ..messages import Restore
from ..saved.sources import START
from ..saving_messages import Unreadable
from .history import History
from .portable import Portable
from .run import Evaluations
from .snapshots import Saved

if TYPE_CHECKING:
    from .process import RankProcess


@dataclass(frozen=True)
class Entered:
    """Where a rank begins.

    Attributes:
        first: the first step to take.
        generation: in which it does.
        evaluations: results of those that came before step 0.
        loss: of the last step before, if everybody went back to a saved state; else None, as ``streams`` is.
        streams: random streams as they stood then.
    """

    first: int
    generation: Generation
    evaluations: Evaluations = ()
    loss: float | None = None
    streams: Mapping[str, Any] | None = None


def enter(process: "RankProcess", portable: Portable, history: History, parked: bool, timeouts: Timeouts) -> Entered:
    """Wait for a generation, and take the state before its position if that is not the initial one.

    Args:
        portable: what the state is written to.
        history: of this rank; its next record is that of the first step.
        parked: whether this is a spare, which waits for as long as nobody needs it.
    """
    # A parked rank waits until it is needed, released, fenced, or hears from no controller any more.
    patience = threading.TIMEOUT_MAX if parked else timeouts.start
    deadline: float | None = None
    while True:
        process.board.stage = "parked" if parked else "waiting for the first generation"
        transaction = process.ledger.await_open(patience)
        generation, restore = transaction.generation, transaction.restore
        assert generation is not None
        history.begin(transaction.position.step, generation)
        if not transaction.lacks:
            return Entered(transaction.position.step, generation)
        process.board.stage = f"taking the state before step {transaction.position}"
        if restore is not None and restore.source == START:
            # The training function has just made it.
            process.went_back(restore)
            portable.begin(restore.changes)
            if process.ledger.obtain(transaction.beginning):
                return Entered(0, generation)
            continue
        if restore is not None:
            saved = _restored(process, restore, generation, timeouts)
            state = None if saved is None else saved.state
        else:
            deadline = deadline or time.monotonic() + timeouts.recovery
            saved, state = None, process.handover.take(generation, deadline)
        if state is None:
            continue
        portable.write(state)
        if process.ledger.obtain(transaction.beginning):
            loss, streams = (saved.loss, saved.streams) if saved else (None, None)
            return Entered(transaction.position.step, generation, state.evaluations, loss, streams)


def _restored(process: "RankProcess", restore: Restore, generation: Generation, timeouts: Timeouts) -> Saved | None:
    """The saved state that everybody goes back to; None if it cannot be read: then another one is called for."""
    process.chaos.at(FaultPoint.IN_RESTORE, f"from {restore.source}", restore.step)
    try:
        saved = process.saved(restore)
    except SavedStateError as error:
        process.say(Unreadable(process.incarnation, restore.source, restore.step, str(error)))
        process.ledger.await_other(generation, timeouts.recovery)
        return None
    return replace(saved, state=replace(saved.state, changes=joined(saved.state.changes, restore.changes)))

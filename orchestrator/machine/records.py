"""The record of every step reaches the controller once and in order, for as long as one rank that has it lives.

Every rank keeps the records of the steps that it has applied until a ping says that the controller has them. The ping
asks one rank for those that it still keeps; its next heartbeat brings them, so that no message is sent for a step. When
that rank dies another one is asked. The same record may come twice; steps are counted, so it is taken once.
"""

from collections.abc import Sequence

from ...actors.messages import Heartbeat, Ping, StepRecord
from ...policies.values import changed
from .events import Action, Publish, Record, Send
from .state import Rank, Standing, State

RATE_WINDOW_S = 10.0
# (seconds, weight, model FLOPs) of one step.
Pace = tuple[float, float, float | None]


def heard(state: State, message: Heartbeat) -> tuple[State, list[Action]]:
    """Take the records of a heartbeat that follow on those that are here."""
    undone = state.undone
    if undone is not None and message.generation is not None and message.generation < undone.generation:
        # It has not heard yet that everybody went back: these steps are taken once more.
        return state, []
    # While this rank keeps what comes next nothing is lost, and the others need not be looked at.
    state, actions = _give_up(state) if message.held > state.recorded else (state, [])
    new = [record for record in message.records if record.step >= state.recorded]
    # A rank keeps its records without a gap: they follow on, or another rank must give an older one first.
    if not new or new[0].step > state.recorded:
        return state, actions
    state = changed(state, recorded=new[-1].step + 1, record=new[-1], pace=_pace(state.pace, new))
    return state, [*actions, Publish(tuple(new))]


def pings(state: State) -> list[Action]:
    """One for each living rank; the one that is asked for records is told so."""
    asked = _to_ask(state)
    return [
        Send(rank.incarnation, Ping(state.recorded, rank.incarnation == asked)) for rank in state.living if rank.pid
    ]


def rates(state: State) -> tuple[float | None, float | None]:
    """Weight, and model FLOPs, per second of late; None where nothing is known."""
    seconds = sum(second for second, _, _ in state.pace)
    if seconds <= 0:
        return None, None
    flops = [flop for _, _, flop in state.pace if flop is not None]
    weight = sum(weight for _, weight, _ in state.pace)
    return weight / seconds, sum(flops) / seconds if len(flops) == len(state.pace) else None


def _to_ask(state: State) -> str | None:
    """The lowest seat that has the next record; if none is known to have it, the lowest that may come to have it."""

    def preference(rank: Rank) -> tuple[object, ...]:
        has = rank.held <= state.recorded < rank.position.step
        return not has, rank.held > state.recorded

    # The lowest seat of those that are preferred: members come in that order.
    fit = [rank for rank in state.members if rank.standing is not Standing.SUSPECT]
    return min(fit, key=preference).incarnation if fit else None


def _give_up(state: State) -> tuple[State, list[Action]]:
    """Go on with the oldest record that is kept, when every rank that had older ones is gone."""
    first = min((rank.held for rank in state.members), default=0)
    if first <= state.recorded:
        return state, []
    facts = {"first": state.recorded, "last": first - 1}
    begun, state = state.record is not None, changed(state, recorded=first)
    if not begun:
        # A run that was resumed: the steps before belong to an earlier life.
        return state, []
    text = f"the records of steps {facts['first']} to {facts['last']} are lost: every rank that had them is gone"
    return changed(state, warnings=(*state.warnings, text)), [Record("records lost", facts=facts)]


def _pace(pace: tuple[Pace, ...], new: Sequence[StepRecord]) -> tuple[Pace, ...]:
    """Enough of the newest steps to fill the window."""
    pace = (*pace, *((record.seconds, record.weight, record.flops) for record in new))
    seconds, first = 0.0, len(pace)
    while first and seconds < RATE_WINDOW_S:
        first -= 1
        seconds += pace[first][0]
    return pace[first:]

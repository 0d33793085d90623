"""How long the machine takes from one failure to the whole new plan, in a world of 100,000 ranks, on one core."""

import gc
import resource
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from everstep.actors.messages import Heartbeat, Hello, Open, Prepare, Ready, Report
from everstep.conf.elastic import Timeouts
from everstep.orchestrator.machine import events
from everstep.orchestrator.machine.memory import note
from everstep.orchestrator.machine.settings import Settings
from everstep.orchestrator.machine.state import State
from everstep.orchestrator.machine.transition import advance
from everstep.policies.recovery import recovery_policy
from everstep.policies.workload import Balanced
from everstep.policies.world import Generation, Position, Work, WorkKind

_AT = Position(1000)
# Reports that wait when the controller comes to read them; a few milliseconds' worth.
_AT_ONCE = 1000


@dataclass(frozen=True)
class Planned:
    """What one failure took, in seconds of one core.

    Attributes:
        notice: the end of the rank, up to the words that ask everybody to report.
        reports: all of them but the last thousand.
        plan: the last thousand, which bring the plan and the messages that open the new generation.
        opened: such messages.
        peak_gib: largest memory of the process so far.
    """

    notice: float
    reports: float
    plan: float
    opened: int
    peak_gib: float

    @property
    def total(self) -> float:
        return self.notice + self.reports + self.plan


def plan_after_a_loss(ranks: int, size: int, quota: int) -> Planned:
    """One rank of so many is lost in the middle of a step.

    Args:
        ranks: in the world.
        size: ranks of one replica.
        quota: microbatches of one replica in a step.
    """
    with _collector_paused():
        return _plan_after_a_loss(ranks, size, quota)


def _plan_after_a_loss(ranks: int, size: int, quota: int) -> Planned:
    work = Work(WorkKind.TRAINING, ranks // size * quota)
    state = _training(ranks, size, work)
    assert state.world is not None
    members = state.world.incarnations
    lost = members[len(members) // 2]
    began = time.process_time()
    state, actions = _taken(state, events.Ended(lost, "killed"))
    noticed = time.process_time()
    asked = [action for action in actions if isinstance(action, events.Send) and isinstance(action.message, Prepare)]
    heard = [
        events.Heard(action.incarnation, _report(state, action.incarnation, action.message.generation, work, quota))
        for action in asked
        if isinstance(action.message, Prepare)
    ]
    ready = time.process_time()
    # As the controller does: what came while the last ones were read is one event.
    *batches, last = _batched(heard, _AT_ONCE)
    for batch in batches:
        state, _ = _taken(state, events.Reports(batch))
    reported = time.process_time()
    state, actions = _taken(state, events.Reports(last))
    opened = time.process_time()
    opens = sum(isinstance(action, events.Send) and isinstance(action.message, Open) for action in actions)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return Planned(noticed - began, reported - ready, opened - reported, opens, peak)


def _taken(state: State, event: events.Event) -> tuple[State, list[events.Action]]:
    """With the lines that the controller would write into its journal."""
    after, actions = advance(state, event, 1.0)
    return after, [*note(state, after), *actions]


def _batched(heard: Sequence[events.Heard], size: int) -> Iterator[tuple[events.Heard, ...]]:
    """So many at a time."""
    for first in range(0, len(heard), size):
        yield tuple(heard[first : first + size])


def _training(ranks: int, size: int, work: Work) -> State:
    """So many ranks in the middle of a step."""
    names = tuple(f"{place:06d}" for place in range(ranks))
    policy = recovery_policy("shrink")
    state = State(Settings("large", 1, names, 1, Balanced(), Timeouts(), ranks_per_replica=size, recovery=policy))
    said: Sequence[events.Event] = (
        events.Started(),
        *(events.Heard(name, Hello(name, 1, f"node{place // 8}")) for place, name in enumerate(names)),
        *(events.Heard(name, Ready(name, {}, 10_000)) for name in names),
        events.StoreOpened("host", 1),
        *(events.Heard(name, Heartbeat(name, _AT, "training", work=work)) for name in names),
    )
    for event in said:
        state, _ = advance(state, event, 0.5)
    return state


def _report(state: State, name: str, promised: Generation, work: Work, quota: int) -> Report:
    """Half of the replica's microbatches are done."""
    assert state.world is not None
    member = state.world.member(name)
    assert member is not None
    first = member.seat.replica * quota
    done = frozenset(range(first, first + quota // 2))
    owed = frozenset(range(first + quota // 2, first + quota))
    return Report(name, state.world.generation, _AT, done, owed, work=work, promised=promised)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """The machine's values make no cycles, and looking for some among millions of them takes longer than the plan."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()

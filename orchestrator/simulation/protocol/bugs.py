"""Protocol bugs to plant, one at a time: a checker that finds none of them would prove nothing.

Bugs of the ranks replace a function of theirs. Bugs of the controller sit at the border of its machine, where what it
hears, or what it answers, is changed as a wrong machine would have changed it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from ....actors.messages import Finished, Open, Release, Report, Serving
from ....actors.rank import ledger
from ....actors.rank.ledger import Ledger
from ....actors.rank.transaction import Transaction, Verdict
from ....monitors.consensus import Attributed
from ....monitors.consensus import Verdict as Finding
from ....policies.world import Generation, Position, Work, WorkKind
from ...machine import events, evidence, trust
from ...machine.state import State
from . import controllers
from .lives import Lives
from .ranks import Rank
from .snapshots import Snapshots
from .training import Training

Actions = Sequence[events.Action]


@dataclass(frozen=True)
class Bug:
    """One planted bug.

    Attributes:
        name: of it.
        plant: while it is in there, every simulation has it.
        rare: whether it takes dozens of seeds to show.
    """

    name: str
    plant: Callable[[], AbstractContextManager[None]]
    rare: bool = False


@contextmanager
def _instead(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """While inside, ``owner.name`` is what ``make`` makes of it."""
    original = getattr(owner, name)
    setattr(owner, name, make(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


def _hearing(change: Callable[[State, events.Event], events.Event]) -> AbstractContextManager[None]:
    """A controller that hears something else."""

    def make(advance: Any) -> Any:
        return lambda state, event, now: advance(state, change(state, event), now)

    return _instead(controllers, "advance", make)


def _reporting(change: Callable[[State, Report], Report]) -> AbstractContextManager[None]:
    """A controller that understands reports wrongly."""

    def wrong(state: State, event: events.Event) -> events.Event:
        if isinstance(event, events.Heard) and isinstance(event.message, Report):
            return replace(event, message=change(state, event.message))
        return event

    return _hearing(wrong)


def _opening(change: Callable[[State, Open], Open]) -> AbstractContextManager[None]:
    """A controller that opens generations otherwise; ``change`` gets the state after it."""

    def make(advance: Any) -> Any:
        def wrong(state: State, event: events.Event, now: float) -> tuple[State, Actions]:
            state, actions = advance(state, event, now)
            return state, [_opened(state, action, change) for action in actions]

        return wrong

    return _instead(controllers, "advance", make)


def _opened(state: State, action: events.Action, change: Callable[[State, Open], Open]) -> events.Action:
    if isinstance(action, events.Send) and isinstance(action.message, Open):
        return replace(action, message=change(state, action.message))
    return action


# --- the ranks' half


def _vote_skipped() -> AbstractContextManager[None]:
    """Whoever has the sum decides: some of the others may not have it."""

    def make(collect: Any) -> Any:
        def wrong(self: Training, generation: Generation, group: Any, what: str, contribution: object) -> Any:
            return {} if what == "vote" else (yield from collect(self, generation, group, what, contribution))

        return wrong

    return _instead(Training, "_collect", make)


def _promise_not_kept() -> AbstractContextManager[None]:
    """A rank that has reported still decides in the generation that it gave up."""
    return _instead(Transaction, "current", lambda _: lambda self, generation: self.generation == generation)


def _begun_after_report() -> AbstractContextManager[None]:
    """Work is begun between a report and the next generation: planned in the old world, and nobody knows of it."""

    def wrong(self: Ledger, position: Position, work: Work, timeout: float) -> Transaction:
        self._transaction = self._transaction.take_up(position, work, self._share(self._transaction, work))
        return self._transaction

    return _instead(Ledger, "take_up", lambda _: wrong)


def _sums_forgotten() -> AbstractContextManager[None]:
    """A rank reports that it has nothing, though its accumulators hold something."""

    def make(report: Any) -> Any:
        return lambda self, *cause: replace(report(self, *cause), done=frozenset())

    return _instead(Transaction, "report", make)


def _poison_everywhere() -> AbstractContextManager[None]:
    """Poison of one step is taken for poison of every other one."""

    def wrong(self: Transaction) -> frozenset[int]:
        return frozenset(index for indices in self.poisonous.values() for index in indices)

    return _instead(Transaction, "poison", lambda _: property(wrong))


def _poison_forgotten() -> AbstractContextManager[None]:
    """A rank forgets poison when it comes to another position."""

    def make(at: Any) -> Any:
        return lambda self, position: replace(at(self, position), poisonous={})

    return _instead(Transaction, "_at", make)


def _evaluation_counted_as_step() -> AbstractContextManager[None]:
    """All ranks count alike, and wrongly."""

    def wrong(position: Position, verdict: Verdict, kind: WorkKind) -> Position:
        return Position(position.step + 1)

    return _instead(ledger, "after", lambda _: wrong)


def _state_of_another_step() -> AbstractContextManager[None]:
    """Whoever is asked for its state gives it away in the middle of an update."""

    def make(gives: Any) -> Any:
        def wrong(self: Training, source: str, position: Position) -> bool:
            giver = self._simulation.ranks[source]
            giver.training.untorn = giver.training.untorn or position
            return bool(gives(self, source, position)) or giver.alive

        return wrong

    return _instead(Training, "_gives", make)


def _shadow_counted() -> AbstractContextManager[None]:
    """A shadow adds what it computes to the sum."""
    return _instead(Transaction, "repeats", lambda _: property(lambda self: None))


def _older_generation_entered() -> AbstractContextManager[None]:
    """A rank goes into a generation that is older than what it promised."""

    def make(opened: Any) -> Any:
        return lambda self, message: opened(replace(self, promised=None), message)

    return _instead(Transaction, "open", make)


# --- the controller's half


def _generation_reused() -> AbstractContextManager[None]:
    """The number of a generation is given a second time."""

    def make(advance: Any) -> Any:
        def wrong(state: State, event: events.Event, now: float) -> Any:
            idle = state.recovery is None and state.number > 1
            return advance(replace(state, number=state.number - 1) if idle else state, event, now)

        return wrong

    return _instead(controllers, "advance", make)


def _stale_report_accepted() -> AbstractContextManager[None]:
    """A report of an older generation is taken for one of the newest."""

    def wrong(state: State, message: Report) -> Report:
        stale = state.world is not None and message.abandons < state.world.generation
        return replace(message, abandons=state.world.generation) if stale and state.world else message

    return _reporting(wrong)


def _owed_given_out() -> AbstractContextManager[None]:
    """What a survivor still computes is given to others as well."""
    return _reporting(lambda _, message: replace(message, owed=frozenset()))


def _index_dropped() -> AbstractContextManager[None]:
    """One of the lost microbatches is given to nobody."""

    def wrong(state: State, message: Open) -> Open:
        if message.work is None or state.recovery is None or not state.recovery.lost_microbatches:
            return message
        dropped = state.recovery.lost_microbatches[-1]
        indices = {name: tuple(i for i in held if i != dropped) for name, held in message.indices.items()}
        return replace(message, indices=indices)

    return _opening(wrong)


def _decided_not_followed() -> AbstractContextManager[None]:
    """What one survivor has decided is done again by those who have not."""

    def wrong(state: State, message: Open) -> Open:
        reports = [rank.report for rank in state.members if rank.report is not None]
        if state.recovery is None or not reports or message.restore is not None:
            return message
        behind = min(held.position for held in reports)
        return replace(message, position=behind)

    return _opening(wrong)


def _taken_for_decided() -> AbstractContextManager[None]:
    """A position that nobody has come to is passed over."""

    def wrong(state: State, message: Open) -> Open:
        if state.recovery is None or message.work is not None:
            return message
        return replace(message, position=Position(message.position.step + 1))

    return _opening(wrong)


def _work_forgotten() -> AbstractContextManager[None]:
    """A generation is opened as if nobody had begun."""
    return _opening(lambda _, message: replace(message, work=None))


def _lacking_taken_for_holder() -> AbstractContextManager[None]:
    """A newcomer that has not got its state yet counts as one that has."""
    return _reporting(lambda _, message: replace(message, lacks=False))


def _leaver_let_go_with_work() -> AbstractContextManager[None]:
    """Whoever is to leave is let go at once, whatever it has in hand."""

    def make(advance: Any) -> Any:
        def wrong(state: State, event: events.Event, now: float) -> Any:
            state, actions = advance(state, event, now)
            opened = next((one.message for one in actions if isinstance(one, events.Send)
                           and isinstance(one.message, Open)), None)  # fmt: skip
            leaving = () if opened is None else sorted(opened.leaving)
            return state, [*actions, *(events.Send(name, Release()) for name in leaving)]

        return wrong

    return _instead(controllers, "advance", make)


def _newcomer_without_source() -> AbstractContextManager[None]:
    """A newcomer is let in with the state that it was built with."""
    return _opening(lambda state, message: replace(message, sources={name: name for name in message.sources}))


# --- controller lives


def _term_taken_twice() -> AbstractContextManager[None]:
    """A later life acts under the term of the first one."""
    return _instead(Lives, "_settings", lambda settings: lambda self, term: settings(self, 1))


def _deposed_goes_on() -> AbstractContextManager[None]:
    """A controller that was replaced while it was stopped acts on when it wakes up."""
    return _instead(controllers.Controller, "_holds", lambda _: lambda self: True)


def _older_world_adopted() -> AbstractContextManager[None]:
    """A later life goes on with the first world that it hears of, whatever came after it."""

    def wrong(state: State, event: events.Event) -> events.Event:
        known = None if state.adoption is None else state.adoption.world
        if known is None or not (isinstance(event, events.Heard) and isinstance(event.message, Serving)):
            return event
        newer = event.message.world.generation > known.generation
        return replace(event, message=replace(event.message, world=known)) if newer else event

    return _hearing(wrong)


# --- what is computed wrong


def _undone_taken_again() -> AbstractContextManager[None]:
    """What was saved of steps that everybody went back from stays, and is gone on from later."""
    return _instead(Snapshots, "undo", lambda _: lambda self, undone: None)


def _gone_back_too_little() -> AbstractContextManager[None]:
    """Everybody goes back to the newest saved state, whether or not it is known to be right."""

    def wrong(state: State, kind: str) -> int:
        return max((step for steps in state.held.values() for step in steps), default=0)

    return _instead(trust, "newest_trusted", lambda _: wrong)


def _healthy_shut_out() -> AbstractContextManager[None]:
    """Of those who differ, one of the many is taken for wrong."""

    def make(verdict: Any) -> Any:
        def wrong(brought: Mapping[int, Mapping[str, int]]) -> Finding:
            said: Finding = verdict(brought)
            healthy = sorted(set(brought).difference(getattr(said, "ranks", ())))
            return replace(said, ranks=tuple(healthy[:1])) if isinstance(said, Attributed) else said

        return wrong

    return _instead(evidence, "state_verdict", make)


def _end_of_before_said_again() -> AbstractContextManager[None]:
    """Who had finished when everybody goes back says so in the new generation as well."""

    def make(recall: Any) -> Any:
        def wrong(self: Rank) -> None:
            end, generation = self._said.get(Finished), self.ledger.transaction.generation
            if isinstance(end, Finished) and generation is not None and self.training.stage == "finished":
                self.say(replace(end, generation=generation))
            recall(self)

        return wrong

    return _instead(Rank, "recall", make)


_RARE = (
    _poison_forgotten,
    _lacking_taken_for_holder,
    _older_world_adopted,
    _undone_taken_again,
    _end_of_before_said_again,
)
BUGS = tuple(
    Bug(plant.__name__.strip("_").replace("_", " "), plant, plant in _RARE)
    for plant in (
        _vote_skipped,
        _promise_not_kept,
        _begun_after_report,
        _sums_forgotten,
        _poison_everywhere,
        _poison_forgotten,
        _evaluation_counted_as_step,
        _state_of_another_step,
        _shadow_counted,
        _older_generation_entered,
        _generation_reused,
        _stale_report_accepted,
        _owed_given_out,
        _index_dropped,
        _decided_not_followed,
        _taken_for_decided,
        _work_forgotten,
        _lacking_taken_for_holder,
        _leaver_let_go_with_work,
        _newcomer_without_source,
        _term_taken_twice,
        _deposed_goes_on,
        _older_world_adopted,
        _undone_taken_again,
        _gone_back_too_little,
        _healthy_shut_out,
        _end_of_before_said_again,
    )
)

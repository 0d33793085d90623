"""A run that hears what a scenario says: the real machine, and ranks that do only what they are told to do."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby

from everstep.actors.messages import FromRank, Heartbeat, Hello, Ready, Serving
from everstep.orchestrator.machine.events import Action, Event, Heard, KillRank, Started, StoreOpened, Tick, TookOver
from everstep.orchestrator.machine.memory import inherited
from everstep.orchestrator.machine.settings import Settings
from everstep.orchestrator.machine.state import State
from everstep.orchestrator.machine.transition import advance
from everstep.policies.world import Generation, Position, Seat, Work, WorkKind

from .takeover import Archive, introduction, successor
from .words import seen, told

TICK_S = 0.5
Advance = Callable[[State, Event, float], tuple[State, list[Action]]]


def name(rank: int) -> str:
    return f"{rank:04d}-a"


@dataclass
class Stage:
    """One run.

    Attributes:
        settings: of the run.
        microbatches: B.
        steps: optimizer steps in all.
        advance: the machine.
        silent: ranks that say nothing, though nobody has ended them.
        archive: what another controller would find.
    """

    settings: Settings
    microbatches: int
    steps: int
    advance: Advance = advance
    now: float = 100.0
    silent: set[str] = field(default_factory=set)
    archive: Archive = field(default_factory=Archive)
    _answered: list[tuple[float, Action]] = field(default_factory=list)
    _seats: dict[str, Seat | None] = field(default_factory=dict)
    _events: list[Event] = field(default_factory=list)
    _last: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.state = State(self.settings)

    def play(self, command: Callable[["Stage"], None]) -> list[str]:
        """What comes of a command, in words."""
        before, began = self.state, self.now
        self._answered, self._events, self._last = [], [], self._events
        command(self)
        return [*self._told(began), *seen(before, self.state, self.now)]

    def _told(self, began: float) -> Iterator[str]:
        """Time is told where it passes."""
        for moment, group in groupby(self._answered, key=lambda pair: pair[0]):
            lines = list(told([action for _, action in group], self._seats))
            if lines and moment > began:
                yield f"after {moment - began:g} s:"
            yield from lines

    # --- what happens

    def happen(self, event: Event) -> None:
        before = self.state
        self.state, actions = self.advance(before, event, self.now)
        if isinstance(event, TookOver):
            before = inherited(before, event.past, self.now - event.at)
        self.archive.keep(before, self.state, actions, self.now)
        self._answered += [(self.now, action) for action in actions]
        self._events.append(event)
        self.silent.update(action.incarnation for action in actions if isinstance(action, KillRank))

    def hear(self, rank: int, message: FromRank) -> None:
        self.happen(Heard(name(rank), message))

    def again(self) -> None:
        """What was heard last comes a second time."""
        for event in self._last:
            self.happen(event)

    def start(self) -> None:
        """Ask for the ranks."""
        self.happen(Started())

    def open_store(self) -> None:
        self.happen(StoreOpened("host", 1))

    def connect(self, rank: int, node: str) -> None:
        self.hear(rank, Hello(name(rank), 1000 + rank, node))

    def ready(self, rank: int, built: str = "the same") -> None:
        self.hear(rank, Ready(name(rank), {"weight": built}, self.steps))

    def wait(self, seconds: float) -> None:
        """Time passes, tick by tick, and whoever is connected and not silent says that it lives."""
        end = self.now + seconds
        while self.now < end - 1e-9:
            self.now = min(end, self.now + TICK_S)
            for rank in self.state.living:
                if rank.pid and rank.incarnation not in self.silent:
                    self.happen(Heard(rank.incarnation, Heartbeat(rank.incarnation, rank.position, rank.stage)))
            self.happen(Tick())

    def take_over(self, living: frozenset[str] | None) -> None:
        """The controller dies, and another one is there at once."""
        self.state = successor(self.state, self.state.settings.term + 1)
        self.settings = self.state.settings
        self.happen(TookOver(self.archive.past(), living, self.now))

    def come(self, rank: int, place: Position, *, begun: bool, joined: bool = True) -> None:
        """A rank introduces itself to the controller, and says that it lives."""
        work = self.training if begun else None
        for message in introduction(self.archive, name(rank), 1000 + rank, self.steps, place, work):
            self.hear(rank, replace(message, joined=joined) if isinstance(message, Serving) else message)
        self.hear(rank, Heartbeat(name(rank), place, "training"))

    def sleep(self, seconds: float) -> None:
        """Time passes and the controller does not run."""
        self.now += seconds
        self.happen(Tick(seconds))

    # --- what there is

    def must_know(self, rank: int) -> None:
        """
        Raises:
            ValueError: nobody has asked for this rank.
        """
        # Those that an earlier controller has asked for may come to this one.
        known = max(len(self.state.ranks), len(self.settings.ranks) if self.settings.term > 1 else 0)
        if rank >= known:
            there = f"only 0 to {known - 1}" if known else "nobody has been asked for yet"
            raise ValueError(f"there is no rank {rank}, {there}")

    @property
    def generation(self) -> Generation:
        """
        Raises:
            ValueError: none was opened.
        """
        world = self.state.world or (self.state.adoption and self.state.adoption.world)
        if not world:
            raise ValueError("there is no generation yet")
        return world.generation

    @property
    def training(self) -> Work:
        return Work(WorkKind.TRAINING, self.microbatches)

    @property
    def evaluation(self) -> Work:
        return Work(WorkKind.EVALUATION, self.microbatches)

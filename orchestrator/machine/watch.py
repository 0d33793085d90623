"""What the controller knows of a node on which ranks of the run live."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from immutables import Map

from ...actors.stability_messages import StabilityTold
from ...monitors import links, stragglers
from ...monitors.progress import ProgressRecord
from ...monitors.spent import Spent
from ...policies.world import Generation


@dataclass(frozen=True)
class Watch:
    """A node on which ranks of the run live, and who watches it.

    Attributes:
        sentinel: the newest one that was asked for, or that came.
        serial: how many were asked for.
        asked: when the last one was.
        up: whether it was heard, and is neither gone nor given up.
        last_heard: when that was.
        ended: when it was gone or given up, 0 while it is not.
        suspected: since when nobody of the node is heard, 0 while somebody is.
        lost: whether the node was given up; it is back when a rank of it is heard that was not.
        ranks: process ids of those who live there.
        fallen: when ranks ended there that nobody wanted to go.
        seen: what the sentinel says that they are doing.
        progress: what it sees that they are at.
    """

    sentinel: str = ""
    serial: int = 0
    asked: float = 0.0
    up: bool = False
    last_heard: float = 0.0
    ended: float = 0.0
    suspected: float = 0.0
    lost: bool = False
    ranks: Map[str, int] = field(default_factory=Map)
    fallen: Map[str, float] = field(default_factory=Map)
    seen: Mapping[str, str] = field(default_factory=dict)
    progress: Mapping[str, ProgressRecord] = field(default_factory=dict)


@dataclass(frozen=True)
class Stability:
    """The newest that the stability monitors of the ranks have told, and in which generation."""

    told: StabilityTold
    generation: Generation

    @property
    def age(self) -> tuple[int, Generation, int]:
        """What is less is older: ranks may be a look apart."""
        return self.told.changes, self.generation, self.told.trust.checked or 0


@dataclass(frozen=True)
class Standstill:
    """Nothing moves.

    Attributes:
        reason: one line.
        ranks: those who hold up the others; none if that cannot be told.
        since: when it was noticed.
        seen: what each member was at then, by what people call it.
    """

    reason: str
    ranks: tuple[str, ...]
    since: float
    seen: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Slow:
    """A member that is slow.

    Attributes:
        parts: at what.
        reason: how slow, in words that follow its name.
        clean: rounds in a row in which it was not slow; it takes as many to forget it as to name it.
    """

    parts: tuple[stragglers.Part, ...]
    reason: str
    clean: int = 0


@dataclass(frozen=True)
class Rounds:
    """Members are timed round by round.

    Attributes:
        generation: in which the round under way began; a change of the world begins another one.
        began: by incarnation, what each had spent when it began.
        seen: by coordinate, what earlier rounds have shown.
        ends: what they have shown of the ends of links.
        link: what is said of them now; empty if nothing is wrong.
        seconds: by incarnation, what a microbatch took in each of the last rounds, its data included.
        slow: by incarnation.
        groupwide: what all members are slower at than they were.
        said: what was decided about those who are slow, in one line.
        left: nodes of those who were made to leave.
    """

    generation: Generation | None = None
    began: Mapping[str, Spent] = field(default_factory=dict)
    seen: Mapping[int, stragglers.Seen] = field(default_factory=dict)
    ends: links.Seen = field(default_factory=links.Seen)
    link: str = ""
    seconds: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    slow: Mapping[str, Slow] = field(default_factory=dict)
    groupwide: frozenset[stragglers.Part] = frozenset()
    said: str = ""
    left: frozenset[str] = frozenset()

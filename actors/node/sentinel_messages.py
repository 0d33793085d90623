"""What sentinels and the controller say to each other, beside ``Ping``, ``Fenced`` and ``Release``."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...monitors.progress import ProgressRecord


@dataclass(frozen=True)
class SentinelHello:
    """First words of a sentinel, also to a controller that has taken over: which node it watches."""

    incarnation: str
    node: str
    pid: int


@dataclass(frozen=True)
class SentinelBeat:
    """The answer to a ``Ping``: its node lives.

    Attributes:
        ranks: by incarnation, what the kernel says of the processes that it guards ("sleeping", "stopped", ...).
        progress: likewise, what those that can be seen are at.
    """

    incarnation: str
    node: str
    ranks: Mapping[str, str] = field(default_factory=dict)
    progress: Mapping[str, ProgressRecord] = field(default_factory=dict)


FromSentinel = SentinelHello | SentinelBeat


@dataclass(frozen=True)
class Guard:
    """These ranks of the run live on your node, with their process ids; others that you guard are to be let go."""

    ranks: Mapping[str, int]


@dataclass(frozen=True)
class Strike:
    """End the process of this rank, now; it is one that you guard."""

    rank: str


ToSentinel = Guard | Strike

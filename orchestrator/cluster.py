"""What the controller needs of a cluster. Ray is the product, local is for rehearsals and tests: one controller."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from ..actors.messages import ToRank
from ..actors.rank.spec import RankSpec
from ..policies.world import Seat
from .machine.events import Event

Sink = Callable[[Event], None]


@dataclass(frozen=True)
class Program:
    """What every rank runs.

    Attributes:
        train: the user's function, pickled by value.
        template: a rank's spec without what differs from rank to rank.
    """

    train: bytes
    template: RankSpec


class Cluster(Protocol):
    """Starts and ends ranks, carries messages, and hears of ends. Every event goes to the sink."""

    async def open(self, sink: Sink) -> tuple[str, int]:
        """Begin to listen; returns host and port of the rendezvous store."""
        ...

    def start(
        self, incarnation: str, seat: Seat | None, avoid: frozenset[str] = frozenset(), node: str | None = None
    ) -> None:
        """Ask for a rank; it says Hello when it is up, or an ``Ended`` event comes.

        Args:
            seat: None for a rank that is parked until it is given one.
            avoid: nodes that it must not be on, if there are others.
            node: where it would be best.
        """
        ...

    def send(self, incarnation: str, message: ToRank) -> None:
        """Never blocks; a message to a rank that is gone is lost."""
        ...

    def kill(self, incarnation: str) -> None:
        """SIGKILL, as directly as the cluster can; the ``Ended`` event confirms it."""
        ...

    async def close(self, timeout: float) -> list[str]:
        """End every rank, wait for their ends at most ``timeout`` seconds; returns who is not known to be gone."""
        ...


def describe(error: BaseException) -> str:
    """An exception in one line."""
    text: Any = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__

"""What the controller needs of a cluster. Ray is the product, local is for rehearsals and tests: one controller."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from ..actors.messages import ToRank
from ..actors.rank.spec import RankSpec
from ..policies.world import Seat
from .machine.events import Event
from .machine.past import Past
from .tenure import Tenure

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
    """Starts and ends ranks, carries messages, and hears of ends. Every event goes to the sink.

    Attributes:
        tenure: the term of the controller that this is for; ranks find it in its directory.
    """

    tenure: Tenure

    async def open(self, sink: Sink) -> tuple[str, int]:
        """Begin to listen, and say where; returns host and port of the rendezvous store."""
        ...

    async def adopt(self, past: Past) -> frozenset[str] | None:
        """Find the ranks that earlier controller lives have started; called once, before anything is started.

        Returns:
            Incarnations that live; None if the cluster knows only the ends that it tells of.
        """
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

    async def abandon(self) -> None:
        """Leave every rank as it is, to a newer controller, and listen no more."""
        ...


def describe(error: BaseException) -> str:
    """An exception in one line."""
    text: Any = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__

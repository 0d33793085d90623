"""What the controller needs of a cluster. Ray is the product, local is for rehearsals and tests: one controller."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ..actors.directory import Directory
from ..actors.node.vault_process import VaultSpec
from ..actors.rank.spec import RankSpec
from ..policies.world import Seat
from .machine.events import Event
from .machine.past import Past
from .tenure import Tenure
from .vault_fleet import StartVault

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
        """Find what earlier controller lives have started; called once, before anything else is.

        Returns:
            Incarnations that live, of ranks, vaults and sentinels; None if it knows only the ends that it tells of.
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

    async def room(self) -> Mapping[str, int]:
        """By node, bytes that snapshots may use there."""
        ...

    def start_vault(self, order: StartVault) -> None:
        """Ask for a vault; it says VaultHello when it is up, or an ``Ended`` event comes."""
        ...

    def start_sentinel(self, incarnation: str, node: str) -> None:
        """Ask for a sentinel on a node that a ``Room`` event told of; it says SentinelHello, or an ``Ended`` comes."""
        ...

    def send(self, incarnation: str, message: object) -> None:
        """Never blocks; a message to a rank, or to a vault, that is gone is lost."""
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


def vault_spec(program: Program, order: StartVault, directory: Directory) -> VaultSpec:
    """What a vault is told at its start."""
    template = program.template
    elastic = template.elastic
    return VaultSpec(
        order.incarnation,
        order.number,
        order.node,
        order.budget,
        template.token,
        elastic.timeouts,
        elastic.chaos,
        directory,
    )


def describe(error: BaseException) -> str:
    """An exception in one line."""
    text: Any = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__

"""Which nodes have a vault, and which are to get one. Pure: words in, orders out."""

from collections.abc import Mapping
from dataclasses import dataclass

from ..actors.node.vault_messages import PREFIX

# A node on which vaults end again and again gets no other one.
_STARTS = 4


@dataclass(frozen=True)
class StartVault:
    """Start a vault.

    Attributes:
        number: in the order in which vaults are started.
        budget: most bytes that it may hold; None for what it finds free on its node.
    """

    incarnation: str
    number: int
    node: str
    budget: int | None


@dataclass
class _Life:
    node: str
    heard: float
    up: bool = False


class VaultFleet:
    """One vault for each node that has ranks, and for others while there are fewer vaults than copies.

    Args:
        lives: part of the names that no other controller life uses.
        copies: of each part.
        room: bytes that snapshots may use, by node.
        most: bytes that they may use of nodes that are not among these; None for what is free there.

    Attributes:
        vaults: that were started, or have come.
        of_ranks: nodes on which ranks were seen.
        others: all nodes that live.
        left: nodes that are lost or drained.
        closed: whether no vault is started any more.
    """

    def __init__(self, lives: str, copies: int, room: Mapping[str, int], most: int | None = None) -> None:
        self._lives = lives
        self._copies = copies
        self.room = room
        self._most = most
        self._started: dict[str, int] = {}
        self.vaults: dict[str, _Life] = {}
        self.of_ranks: set[str] = set()
        self.others: set[str] = set()
        self.left: set[str] = set()
        self.closed = False

    @property
    def wanted(self) -> list[str]:
        """Nodes that are to have a vault."""
        own = sorted(self.of_ranks - self.left)
        others = sorted(self.others - self.left - self.of_ranks)
        return [*own, *others[: max(0, self._copies - len(own))]]

    def starts(self, now: float) -> list[StartVault]:
        """Vaults that are to be started."""
        there = {life.node for life in self.vaults.values()}
        orders = []
        for node in () if self.closed else self.wanted:
            if node in there or self._started.get(node, 0) >= _STARTS:
                continue
            number = sum(self._started.values())
            self._started[node] = self._started.get(node, 0) + 1
            order = StartVault(f"{PREFIX}{number}-{self._lives}", number, node, self.room.get(node, self._most))
            self.vaults[order.incarnation] = _Life(node, now)
            orders.append(order)
        return orders

    def heard(self, incarnation: str, node: str | None, now: float) -> None:
        """A vault has spoken; ``node`` if it has introduced itself."""
        if node is not None:
            self.vaults[incarnation] = _Life(node, now, up=True)
        elif incarnation in self.vaults:
            self.vaults[incarnation].heard = now

    def on(self, node: str) -> list[str]:
        """Vaults of a node."""
        return [name for name, life in self.vaults.items() if life.node == node]

    def silent(self, now: float, patience: float, starting: float) -> list[str]:
        """Vaults that have not been heard of for so many seconds; those that are not up yet may take longer."""
        return [name for name, life in self.vaults.items() if now - life.heard > (patience if life.up else starting)]

    def forgive(self, asleep: float, now: float) -> None:
        """Nobody could be heard for so long."""
        for life in self.vaults.values():
            life.heard = min(now, life.heard + asleep)

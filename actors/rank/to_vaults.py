"""Parts of snapshots are offered to vaults, which come and get them."""

import zlib
from collections.abc import Callable

from .. import exchange
from ..node.vault_messages import Offered, Part, PartName, Withdraw
from .offers import Offers
from .snapshots import Share


class ToVaults:
    """Offers parts until a vault has them.

    Args:
        incarnation: of this rank.
        token: the run's secret.
        host: says, once this rank is connected, at which address vaults can reach it.
        send: to the controller.
    """

    def __init__(self, incarnation: str, token: str, host: Callable[[], str], send: Callable[[Offered], None]) -> None:
        self._incarnation = incarnation
        self._token = token
        self._host = host
        self._send = send
        self._offers = Offers()
        self._lender: exchange.Lender | None = None

    @property
    def closed(self) -> bool:
        """Whether no vault takes anything any more."""
        return self._offers.closed

    @property
    def standing(self) -> list[Offered]:
        """What a controller that has just come must hear of."""
        return self._offers.standing

    def deliver(self, share: Share, memory: memoryview) -> None:
        """Offer a part, and wait until it is taken, or until it is known that nobody will."""
        if self._lender is None:
            self._lender = exchange.Lender(self._host(), self._token, self._offers.lend, self._offers.given)
        part = Part(_name(share), share.parts, memory.nbytes, zlib.crc32(memory))
        offered = Offered(self._incarnation, part, self._lender.address)
        self._offers.put(offered, memory)
        self._send(offered)
        self._offers.await_given(part.name)

    def give_up(self, share: Share, problem: str) -> None:
        """Tell why it will not come."""
        self._send(Offered(self._incarnation, Part(_name(share), share.parts, 0, 0), ("", 0), problem))

    def withdraw(self, message: Withdraw) -> None:
        """Nobody will take this."""
        self._offers.given(message.name)


def _name(share: Share) -> PartName:
    return PartName(share.step, share.generation, share.place)

"""Who looks at what: heads are divided among peers, and spread over comparisons so that none of them takes long."""

from collections.abc import Sequence
from typing import TypeVar

from .projections import share

# Of one rank, and of all of them together, in one comparison.
OF_ONE, OF_ALL = 32, 1024
_Item = TypeVar("_Item")


def turns(heads: int, peers: int) -> int:
    """Over how many comparisons so many heads are spread.

    >>> turns(16, 1), turns(144, 1), turns(144, 8), turns(9216, 512)
    (1, 5, 1, 9)
    """
    return max(1, -(-heads // min(OF_ONE * peers, OF_ALL)))


def looks_at(items: Sequence[_Item], place: int, peers: int, look: int) -> tuple[_Item, ...]:
    """What one peer looks at, in the comparison of this number.

    Places move on from one comparison to the next, so that a peer whose readings are lost, because it dies or has no
    microbatch of its own to send them with, is not always asked for the same heads.

    Args:
        place: of the peer, in 0..peers-1.
    """
    return share(items, (place + look) % peers, peers, look, turns(len(items), peers))

"""Who saves what of a state that all ranks hold: a pure function, so that nobody has to be told."""

import heapq
from collections.abc import Sequence


def divide(sizes: Sequence[int], ranks: int) -> tuple[tuple[int, ...], ...]:
    """Give every tensor to one rank, so that all have about the same number of bytes.

    Largest first, each to whoever has least: nobody has more than a third above what is possible (Graham 1969).

    Args:
        sizes: in bytes, by place.
        ranks: at least 1.

    Returns:
        By rank, the places that it saves, ascending.
    """
    if ranks < 1:
        raise ValueError(f"{ranks} ranks can save nothing")
    loads = [(0, rank) for rank in range(ranks)]
    shares: list[list[int]] = [[] for _ in range(ranks)]
    for place in sorted(range(len(sizes)), key=lambda place: (-sizes[place], place)):
        load, rank = heapq.heappop(loads)
        shares[rank].append(place)
        heapq.heappush(loads, (load + sizes[place], rank))
    return tuple(tuple(sorted(share)) for share in shares)

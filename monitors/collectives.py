"""Is a rank in another collective than its peers? Backends hang or end the process over that."""

from collections.abc import Mapping
from dataclasses import replace

from .consensus import Agree, Attributed, Inconclusive, Verdict, exact
from .progress import Pending


def in_another(pending: Mapping[int, Pending]) -> Verdict:
    """Who has entered another collective than the strict majority, where all have entered equally many.

    Args:
        pending: by rank, its newest collective, with the trail of those before it. Ranks that have entered more or
            fewer are no evidence: see ``hang``.
    """
    found = exact({rank: replace(held, sequence=0) for rank, held in pending.items()})
    match found:
        case Agree():
            return Agree(pending)
        case Inconclusive():
            return Inconclusive(f"{len(pending)} ranks are in unlike collectives, and none in most of them", pending)
    usual = next(held for rank, held in sorted(pending.items()) if rank not in found.ranks)
    entered = "; ".join(f"rank {rank} {_unlike(pending[rank], usual)}" for rank in found.ranks)
    return Attributed(found.ranks, f"{entered}; its peers entered {usual}", pending)


def _unlike(held: Pending, usual: Pending) -> str:
    if replace(held, sequence=0, trail=0) != replace(usual, sequence=0, trail=0):
        return f"entered {held}"
    return f"entered other collectives before {held}"

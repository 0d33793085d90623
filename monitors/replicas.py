"""Replicas hold the same parameters and the same state of the optimizer: who holds other ones, and of which tensors?"""

from collections.abc import Mapping

from .consensus import Agree, Attributed, Inconclusive, Verdict, compare

_SHOWN = 3


def state_verdict(signatures: Mapping[int, Mapping[str, int]]) -> Verdict:
    """One verdict over all tensors of a state.

    Args:
        signatures: by rank, the signature of each tensor by its name, as of the same step.

    Returns:
        Attributed if every tensor that differs names somebody, and those who are named are fewer than half;
        inconclusive if one names nobody. The evidence is, by rank, the signatures of the tensors that differ.
    """
    names = sorted({name for held in signatures.values() for name in held})
    found = {name: verdict for name, verdict in compare(signatures, names).items() if not isinstance(verdict, Agree)}
    if not found:
        return Agree(signatures)
    evidence = {rank: {name: signatures[rank].get(name) for name in found} for rank in signatures}
    for name, verdict in found.items():
        if isinstance(verdict, Inconclusive):
            return Inconclusive(f"{name}: {verdict.reason}", evidence)
    by_rank: dict[int, list[str]] = {}
    for name, verdict in found.items():
        for rank in verdict.ranks if isinstance(verdict, Attributed) else ():
            by_rank.setdefault(rank, []).append(name)
    ranks = tuple(sorted(by_rank))
    told = "; ".join(f"rank {rank} holds another {_some(by_rank[rank])}" for rank in ranks)
    if 2 * len(ranks) >= len(signatures):
        return Inconclusive(f"{len(ranks)} of {len(signatures)} ranks differ, each in something else: {told}", evidence)
    return Attributed(ranks, f"{told}; the others hold the same", evidence)


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return shown + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")

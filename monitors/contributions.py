"""Is what one rank adds to the sum far larger than what its peers add? Before the sum, and no proof of anything.

Which samples a microbatch holds is drawn anew in each step, so on healthy ranks nobody stays above the others; a rank
whose arithmetic is wrong may. Gradients differ from sample to sample, so only a factor counts, and only if it lasts.
"""

from collections.abc import Mapping
from math import isfinite

from .consensus import ENOUGH, Agree, Attributed, Verdict, median_and_scale

# How many times the median of its peers, and how many checks in a row.
FACTOR, CONFIRM = 10.0, 3


def too_large(norms: Mapping[int, float], factor: float = FACTOR) -> Verdict:
    """Whose contribution is far larger than the median of all.

    Args:
        norms: by replica, the largest |gradient| of what it adds; whoever adds nothing, or nothing finite, is left out.
        factor: above 1.

    Returns:
        Attributed if fewer than half are so, and at least three were compared; else Agree.
    """
    held = {replica: norm for replica, norm in norms.items() if isfinite(norm) and norm > 0}
    if len(held) < ENOUGH:
        return Agree(held)
    middle, _ = median_and_scale(list(held.values()))
    large = tuple(sorted(replica for replica, norm in held.items() if norm > factor * middle))
    if not large or 2 * len(large) >= len(held):
        return Agree(held)
    told = "; ".join(f"rank {replica} adds {held[replica] / middle:.3g} times the median" for replica in large)
    return Attributed(large, f"{told} of {middle:.3g}", held)

"""The exact grid: sums that do not depend on who computed what, or in which order.

A gradient is rounded to a multiple of 2^e before any sum, and the multiples are added as whole numbers in float64.
Below 2^53 such sums are exact, hence associative and commutative. The exponent e of a tensor is a function of the
largest |weighted gradient| of the last committed step, so it is the same on every rank and after every recovery.
"""

import math

SIGNIFICAND_BITS = 53
HEADROOM_BITS = 6
FIRST_MAXIMUM = 2.0**10
LOWEST, HIGHEST = -120, 120


def capacity_bits(microbatches: int) -> int:
    """Bits that one microbatch's multiple may use so that the sum of all stays exact in float64."""
    return SIGNIFICAND_BITS - 1 - max(microbatches - 1, 0).bit_length()


def exponent(maximum: float, microbatches: int) -> int:
    """Exponent of the grid for a tensor.

    Args:
        maximum: largest |weighted gradient| of one microbatch in the last committed step; 0 keeps the finest grid.
        microbatches: B.

    Returns:
        e such that ``maximum`` may grow by 2^HEADROOM_BITS before a microbatch no longer fits.
    """
    if not math.isfinite(maximum) or maximum < 0:
        raise ValueError(f"the largest gradient must be finite and not negative, got {maximum}")
    if maximum == 0:
        return LOWEST
    _, ceiling = math.frexp(maximum)
    return min(HIGHEST, max(LOWEST, ceiling + HEADROOM_BITS - capacity_bits(microbatches)))


def fits(maximum: float, exponent_: int, microbatches: int) -> bool:
    """Whether a microbatch with this largest |weighted gradient| can be summed exactly on the grid."""
    return math.isfinite(maximum) and math.ldexp(maximum, -exponent_) <= 2.0 ** capacity_bits(microbatches)


def first_exponent(microbatches: int) -> int:
    """Exponent while nothing is known: wide enough for gradients up to ``FIRST_MAXIMUM``."""
    return exponent(FIRST_MAXIMUM, microbatches)


def next_exponents(maxima: list[float], current: list[int], microbatches: int, *, committed: bool) -> tuple[int, ...]:
    """Exponents after a decided attempt: fitted to the new maxima, or to what did not fit if the attempt is void."""
    fitted = []
    for maximum, held in zip(maxima, current, strict=True):
        keep = maximum == 0 if committed else fits(maximum, held, microbatches)
        fitted.append(held if keep else exponent(maximum, microbatches))
    return tuple(fitted)

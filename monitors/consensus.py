"""Peers that ought to be equal hold evidence beside each other: who is the strict minority?

The two rules of SCOUT (arXiv 2608.11034): equality of values, and distance from the median. Both are pure functions of
the evidence, so every peer that holds it comes to the same verdict. Two peers can differ, but neither can be named.
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, isfinite
from typing import Any

# How many times the scale a value may lie from the median.
DISTANCE = 3.0
# Fewer peers than this detect and never attribute.
ENOUGH = 3
# A scale below the first is no scale; a range below the second is no difference.
_NO_SCALE = 1e-12
_NO_RANGE = 1e-9


@dataclass(frozen=True)
class Agree:
    """Nobody differs. ``evidence`` is what each rank held."""

    evidence: Mapping[int, Any]


@dataclass(frozen=True)
class Attributed:
    """``ranks``, ascending, differ from the strict majority; ``reason`` is one line."""

    ranks: tuple[int, ...]
    reason: str
    evidence: Mapping[int, Any]


@dataclass(frozen=True)
class Inconclusive:
    """Something is wrong, or not known, and nobody can be named; ``reason`` is one line."""

    reason: str
    evidence: Mapping[int, Any]


Verdict = Agree | Attributed | Inconclusive


def exact(evidence: Mapping[int, Hashable]) -> Verdict:
    """Who differs from the value that more than half of all ranks hold.

    Args:
        evidence: by rank, a signature, an id, or any value that is equal on healthy peers.
    """
    if len(set(evidence.values())) <= 1:
        return Agree(evidence)
    value, votes = Counter(evidence.values()).most_common(1)[0]
    if votes <= len(evidence) // 2:
        return Inconclusive(f"no value is held by more than half of {len(evidence)} peers", evidence)
    ranks = tuple(sorted(rank for rank, held in evidence.items() if held != value))
    return Attributed(ranks, f"{votes} of {len(evidence)} peers hold the same, {_named(ranks)} another", evidence)


def statistical(evidence: Mapping[int, float], distance: float = DISTANCE) -> Verdict:
    """Who lies further than ``distance`` scales from the median.

    The median is ``sorted[n // 2]``. The scale is the median of the absolute distances from it; where that is nought
    the range between the quartiles, interpolated; where that is nought the whole range over ``2 * distance``.

    Args:
        evidence: by rank, a finite number, such as seconds.
        distance: in scales, above 0.

    Raises:
        ValueError: for a number that is not finite, or a distance that is not above 0.
    """
    if not distance > 0:
        raise ValueError(f"distance is {distance}; it must be above 0")
    for rank, value in evidence.items():
        if not isfinite(value):
            raise ValueError(f"the evidence of rank {rank} is {value}; only finite numbers can be compared")
    if not evidence:
        return Agree(evidence)
    middle, scale = median_and_scale(list(evidence.values()), distance)
    if not scale:
        return Agree(evidence)
    ranks = tuple(sorted(rank for rank, value in evidence.items() if abs(value - middle) > distance * scale))
    if not ranks:
        return Agree(evidence)
    if 2 * len(ranks) >= len(evidence):
        return Inconclusive(f"{len(ranks)} of {len(evidence)} peers are far from the median", evidence)
    reason = f"{_named(ranks)} further than {distance:g} x {scale:.6g} from the median {middle:.6g}"
    return Attributed(ranks, reason, evidence)


def median_and_scale(values: Sequence[float], distance: float = DISTANCE) -> tuple[float, float]:
    """The median and the scale of ``statistical``; a scale of 0 if all values are the same."""
    ordered = sorted(values)
    count = len(ordered)
    middle = ordered[count // 2]
    if ordered[-1] - ordered[0] < _NO_RANGE:
        return middle, 0.0
    scale = sorted(abs(value - middle) for value in ordered)[count // 2]
    if scale < _NO_SCALE:
        scale = _quantile(ordered, 0.75) - _quantile(ordered, 0.25)
    if scale < _NO_SCALE:
        scale = (ordered[-1] - ordered[0]) / (2 * distance)
    return middle, scale


def compare(evidence: Mapping[int, Mapping[str, Hashable]], groups: Sequence[str]) -> dict[str, Verdict]:
    """Several named kinds of evidence that were gathered at once, each by ``exact``.

    What a rank did not bring is not guessed: the whole group is then inconclusive.
    """
    verdicts: dict[str, Verdict] = {}
    for group in groups:
        held = {rank: brought[group] for rank, brought in evidence.items() if group in brought}
        missing = tuple(sorted(set(evidence) - set(held)))
        verdicts[group] = Inconclusive(f"{_named(missing)} brought no {group}", held) if missing else exact(held)
    return verdicts


def can_attribute(peers: int) -> str | None:
    """One line if so few peers can only detect; said once, when a run starts."""
    if peers >= ENOUGH:
        return None
    return f"{peers} peers can detect a difference but not say whose fault it is; that takes {ENOUGH}"


def _quantile(ordered: Sequence[float], share: float) -> float:
    place = (len(ordered) - 1) * share
    below, above = ordered[floor(place)], ordered[ceil(place)]
    return below + (above - below) * (place - floor(place))


def _named(ranks: Sequence[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))

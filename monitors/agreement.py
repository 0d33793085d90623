"""Do peers that must be equal hold the same values, and if not, who differs in what."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Difference:
    """``key`` is not the same everywhere; ``minority`` names who differs from the most common value.

    ``minority`` is empty if no value is held by more than half: then nobody can be blamed.
    """

    key: str
    values: Mapping[str, str]
    minority: tuple[str, ...]


def first_difference(facts: Mapping[str, Mapping[str, str]]) -> Difference | None:
    """The first key, in the order of the first peer, on which peers differ.

    Args:
        facts: by peer, its facts by key. A missing key counts as a value of its own.
    """
    if not facts:
        return None
    keys: dict[str, None] = {}
    for held in facts.values():
        keys.update(dict.fromkeys(held))
    for key in keys:
        values = {peer: held.get(key, "missing") for peer, held in facts.items()}
        counts = Counter(values.values())
        if len(counts) == 1:
            continue
        common, votes = counts.most_common(1)[0]
        majority = votes * 2 > len(values)
        minority = tuple(peer for peer, value in values.items() if value != common) if majority else ()
        return Difference(key, values, minority)
    return None

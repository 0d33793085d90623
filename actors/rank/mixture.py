"""Several data sets in given proportions, in an order that is exact and needs no history.

Which source a position belongs to follows a tree in which every node shares its turns between two children: of its
first n turns the left child has a·n of them, rounded. So the turns of each source are spread as evenly as whole
numbers allow, and both the source of a position and how often it came before are found in a walk down the tree.

The tree joins the two lightest first, as Huffman's does. A child that has children itself then has at most two thirds
of its parent's turns, so errors of rounding (1/2 at each level) fade on the way down: after any number of positions a
source has had its share to within 1/2 + 1/2·(1 + 2/3 + 4/9 + ...) = 2 samples, to within 1/2 if there are two sources.
"""

import heapq
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from math import lcm
from numbers import Rational
from typing import Any

from ...conf.errors import DataError
from .data import order_of, refuse_unordered
from .order import mix


@dataclass(frozen=True)
class _Node:
    """Shares turns between two children; children are nodes or the number of a source."""

    weight: int
    left_weight: int
    left: "_Node | int"
    right: "_Node | int"

    def before(self, turn: int) -> int:
        """How many of the first ``turn`` turns are the left child's: the share, rounded half up."""
        return (2 * self.left_weight * turn + self.weight) // (2 * self.weight)


class Interleaving:
    """Which source has which position. Pure, in a handful of whole-number operations at any position.

    Args:
        weights: one of each source, positive whole numbers.
    """

    def __init__(self, weights: Sequence[int]) -> None:
        heap: list[tuple[int, int, _Node | int]] = [(weight, source, source) for source, weight in enumerate(weights)]
        heapq.heapify(heap)
        for number in range(len(weights), 2 * len(weights) - 1):
            right, _, lighter = heapq.heappop(heap)
            left, _, heavier = heapq.heappop(heap)
            heapq.heappush(heap, (left + right, number, _Node(left + right, left, heavier, lighter)))
        self._root = heap[0][2]

    def __call__(self, position: int) -> tuple[int, int]:
        """Number of the source, and how many earlier positions are the same source's."""
        node, turn = self._root, position
        while isinstance(node, _Node):
            before = node.before(turn)
            if node.before(turn + 1) > before:
                node, turn = node.left, before
            else:
                node, turn = node.right, turn - before
        return node, turn


class Mixture:
    """Several data sets as one, for ``Microbatches``, in proportion to their weights.

    After any number of samples each source has had its share to within two samples (to within a half if there are two
    sources), however long the run. Each source goes through epochs of its own: each holds every sample once, in a
    permutation of its own. A sample's id is its place in the concatenation of the sources.

    Args:
        datasets: map-style data sets whose samples collate with each other; may be mixtures.
        weights: one of each data set: its share of samples, relative to the others. Taken as written: 0.7 and 0.3 are
            7:3.

    Raises:
        DataError: no data set, another number of weights, a weight that is no positive number, or a data set that is
            empty or not map-style.
    """

    def __init__(self, datasets: Sequence[Any], weights: Sequence[float | Rational]) -> None:
        self.datasets = tuple(datasets)
        if not self.datasets or len(self.datasets) != len(weights):
            raise DataError(f"a mixture of {len(self.datasets)} data sets with {len(weights)} weights: each needs one")
        shares = [_exact(weight, number) for number, weight in enumerate(weights)]
        for number, dataset in enumerate(self.datasets):
            try:
                refuse_unordered(dataset)
            except DataError as error:
                raise DataError(f"source {number} of the mixture: {error}") from None
        whole = lcm(*(share.denominator for share in shares))
        self._interleaving = Interleaving([int(share * whole) for share in shares])
        self._ends = tuple(accumulate(map(len, self.datasets)))

    def __len__(self) -> int:
        return sum(map(len, self.datasets))

    def __getitem__(self, sample: int) -> Any:
        source, own = self.locate(sample)
        return self.datasets[source][own]

    def locate(self, sample: int) -> tuple[int, int]:
        """The number of the source that a sample id belongs to, and its id there.

        Raises:
            IndexError: no sample has this id.
        """
        if not 0 <= sample < self._ends[-1]:
            raise IndexError(f"sample {sample} of {self._ends[-1]}")
        source = bisect_right(self._ends, sample)
        return source, sample - self._first(source)

    def sample_order(self, seed: int, shuffle: bool) -> Callable[[int], int]:
        """From a position to the id of its sample; see ``Ordered``."""
        orders = [order_of(dataset, mix(seed, number, 2), shuffle) for number, dataset in enumerate(self.datasets)]

        def at(position: int) -> int:
            source, turn = self._interleaving(position)
            return self._first(source) + orders[source](turn)

        return at

    def _first(self, source: int) -> int:
        return self._ends[source - 1] if source else 0


def _exact(weight: Any, number: int) -> Fraction:
    try:
        # By its text: the share that was written, not the binary fraction next to it.
        share = Fraction(str(weight))
    except ValueError:
        share = Fraction(0)
    if share <= 0 or isinstance(weight, str):
        raise DataError(
            f"weight {weight!r} of source {number} of the mixture must be a positive number; or leave it out"
        )
    return share

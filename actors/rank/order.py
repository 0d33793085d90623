"""The order of samples as a pure function: no state, no list of indices, any position in constant time.

A permutation of 0..n-1 is a Feistel network over the next even number of bits, walked along its cycle until the value
falls below n. It is keyed by (seed, epoch); position p over all epochs is sample ``permute(p mod n)`` of epoch
``p div n``, and positions count samples over all earlier microbatches. So a microbatch's samples depend on
(seed, step, index) alone, never on a rank or on what came before.
"""

import hashlib
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from ...conf.schedule import BatchSchedule

_ROUNDS = 4
_MASK = (1 << 64) - 1


def mix(*parts: int) -> int:
    """64 well-mixed bits of whole numbers; the root of every derived seed."""
    text = ",".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")


class Permutation:
    """A pseudo-random permutation of 0..n-1.

    Args:
        n: at least 1.
        key: two different keys give unrelated orders.
    """

    def __init__(self, n: int, key: int) -> None:
        if n < 1:
            raise ValueError(f"a permutation needs at least one element, got {n}")
        self._n = n
        self._half = max(1, ((n - 1).bit_length() + 1) // 2)
        self._keys = [mix(key, turn) for turn in range(_ROUNDS)]

    def __call__(self, place: int) -> int:
        """The element at ``place``, 0 <= place < n."""
        if not 0 <= place < self._n:
            raise IndexError(f"place {place} is not in 0..{self._n - 1}")
        value = self._scramble(place)
        while value >= self._n:
            value = self._scramble(value)
        return value

    def _scramble(self, value: int) -> int:
        half, low_mask = self._half, (1 << self._half) - 1
        high, low = value >> half, value & low_mask
        for key in self._keys:
            high, low = low, high ^ (_avalanche(low ^ key) & low_mask)
        return (high << half) | low


def _avalanche(value: int) -> int:
    """Finaliser of SplitMix64 (Steele, Lea, Flood 2014): every input bit reaches every output bit."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


@runtime_checkable
class Ordered(Protocol):
    """A data set that brings an order of its own, as a mixture does. ``Microbatches`` asks for it."""

    def sample_order(self, seed: int, shuffle: bool) -> Callable[[int], int]:
        """From a position, 0 and up without end, to the id of the sample there: a pure function, in constant time."""
        ...


class Epochs:
    """The usual order: epoch after epoch, each holds every sample once.

    Args:
        length: of the data set.
        seed: two different seeds give unrelated orders.
        shuffle: a permutation of its own for every epoch; False keeps the order of the data set.
    """

    def __init__(self, length: int, seed: int, shuffle: bool) -> None:
        self._length = length
        self._seed = seed
        self._shuffle = shuffle
        self._last: tuple[int, Permutation] | None = None

    def __call__(self, position: int) -> int:
        """The sample at ``position``, which counts over all epochs."""
        epoch, place = divmod(position, self._length)
        if not self._shuffle:
            return place
        last = self._last
        if last is None or last[0] != epoch:
            self._last = last = (epoch, Permutation(self._length, mix(self._seed, epoch)))
        return last[1](place)


class SampleOrder:
    """Which samples a microbatch holds.

    Args:
        length: of the data set.
        size: samples in a microbatch.
        microbatches: B, microbatches in a step, or its schedule.
        seed: of the run.
        shuffle: False keeps the order of the data set.
        at: from a position to a sample; by default ``Epochs``.
        passes_over: microbatches whose samples are passed over before a step.
    """

    def __init__(
        self,
        length: int,
        size: int,
        microbatches: int | BatchSchedule,
        seed: int,
        shuffle: bool,
        at: Callable[[int], int] | None = None,
        passes_over: Callable[[int], int] = lambda step: 0,
    ) -> None:
        self.length = length
        self.size = size
        self._schedule = BatchSchedule.of(microbatches)
        self._at = at or Epochs(length, seed, shuffle)
        self._passes_over = passes_over

    def samples(self, step: int, index: int) -> tuple[int, ...]:
        """Sample ids of microbatch (step, index); a tail of an epoch is filled from the next one."""
        first = (self._schedule.before(step) + self._passes_over(step) + index) * self.size
        return tuple(map(self._at, range(first, first + self.size)))

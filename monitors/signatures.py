"""64 bits for a tensor, sensitive to every bit, its place, shape and dtype. At most 512 words leave a device.

The construction of SCOUT (arXiv 2608.11034), a fold by halves and a chain over what is left, with a rotation in each: a
product with an odd number alone leaves the highest bit of a word, the sign of a float, where it is at any place.
Integer arithmetic modulo 2^64 throughout, so it is the same on all devices. It is no cryptographic hash.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

# Words that leave the device, for each tensor at most.
WORDS = 512
# Words that are folded at once, which bounds the memory beside the tensor to 24 MiB.
_CHUNK = 1 << 20
_MASK = (1 << 64) - 1
_BASIS = 0xCBF29CE484222325
_PRIME = 0x00000100000001B3
_TURN = 29
# So many chains are quicker beside each other, word by word, than one after the other.
_MANY = 16


@dataclass(frozen=True)
class Folded:
    """What the signature of a tensor is made from, still where the tensor lies.

    Attributes:
        words: int64, shape [at most ``WORDS``], memory of its own.
        size: bytes of the tensor.
        shape: of the tensor.
        dtype: of the tensor, as text.
    """

    words: torch.Tensor
    size: int
    shape: tuple[int, ...]
    dtype: str


def folded(tensor: torch.Tensor) -> Folded:
    """Fold one dense tensor where it lies; nothing waits for the device, and the tensor may change afterwards.

    Args:
        tensor: any shape, any dtype, any device; need not be contiguous.

    Raises:
        TypeError: for a tensor that is not dense.
    """
    if tensor.layout is not torch.strided:
        raise TypeError(f"a tensor of layout {tensor.layout} has no signature; make it dense")
    size = tensor.numel() * tensor.element_size()
    words = _fold(_words(tensor, size)) if size else torch.empty(0, dtype=torch.int64)
    return Folded(words.clone() if words.numel() * 8 >= size else words, size, tuple(tensor.shape), str(tensor.dtype))


def signatures_of(folds: Sequence[Folded]) -> list[int]:
    """The signatures of many tensors, in their order; their words leave the device together."""
    parts = _fetched([fold.words for fold in folds])
    chains = _chains(parts) if len(folds) >= _MANY else [_chain(_BASIS, part.tolist()) for part in parts]
    return [_described(hashed, fold) for hashed, fold in zip(chains, folds, strict=True)]


def tensor_signature(tensor: torch.Tensor) -> int:
    """A signed 64-bit signature of one dense tensor, computed where it lies.

    Args:
        tensor: as in ``folded``.

    Raises:
        TypeError: likewise.
    """
    return signatures_of([folded(tensor)])[0]


def signature(value: object) -> int:
    """A signed 64-bit signature of tensors, numbers, strings, None, and of lists, tuples and mappings of these.

    The order of a mapping's items does not matter, that of a sequence does; types count (1, 1.0 and True differ).

    Raises:
        TypeError: for a value of any other type.
    """
    return _signed(_hashed(value))


def combined(signatures: Iterable[int]) -> int:
    """One signature for several, in their order."""
    held = list(signatures)
    return _signed(_chain(_chain(_BASIS, (len(held),)), held))


def condensed(signatures: Mapping[str, int], most: int) -> dict[str, int]:
    """No more than ``most`` signatures, by combining what lies together: names lose their last part.

    Args:
        signatures: by dotted name, in an order that is the same on all ranks.
        most: at least 1.
    """
    held = dict(signatures)
    while len(held) > most:
        together: dict[str, list[int]] = {}
        for name, one in held.items():
            together.setdefault(name.rpartition(".")[0] or "all else", []).append(one)
        held = {name: combined(ones) for name, ones in together.items()}
    return held


def _hashed(value: object) -> int:
    start = _chain_bytes(_BASIS, type(value).__name__.encode())
    match value:
        case torch.Tensor():
            return _chain(_chain_bytes(_BASIS, b"tensor"), (tensor_signature(value),))
        case None:
            return start
        case bool() | int():
            return _chain_bytes(start, str(int(value)).encode())
        case float():
            return _chain_bytes(start, struct.pack("<d", value))
        case str():
            return _chain_bytes(start, value.encode())
        case bytes():
            return _chain_bytes(start, value)
        case list() | tuple():
            return _chain(start, (len(value), *map(_hashed, value)))
        case Mapping():
            items = sorted((_hashed(key), _hashed(held)) for key, held in value.items())
            return _chain(_chain_bytes(_BASIS, b"mapping"), (len(items), *(part for item in items for part in item)))
    raise TypeError(f"a {type(value).__name__} has no signature; give tensors, numbers, strings, lists or mappings")


def _words(tensor: torch.Tensor, size: int) -> torch.Tensor:
    """The bytes as int64, with zeros up to a whole word; a copy only where they don't lie that way."""
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    if size % 8 or flat.storage_offset() % 8:
        padded = torch.zeros((size + 7) // 8 * 8, dtype=torch.uint8, device=tensor.device)
        padded[:size] = flat
        flat = padded
    return flat.view(torch.int64)


def _fold(words: torch.Tensor) -> torch.Tensor:
    while words.numel() > _CHUNK:
        words = torch.cat([_halve(chunk) for chunk in words.split(_CHUNK)])
    return _halve(words)


def _halve(words: torch.Tensor) -> torch.Tensor:
    """Half onto half until there are no more than ``WORDS``; each level has two odd factors of its own."""
    level = 0
    while words.numel() > WORDS:
        half = (words.numel() + 1) // 2
        high = words[half:] * _factor(2 * level + 1)
        low = words[:half] * _factor(2 * level)
        # A rotation; the shift to the right carries the sign along, which the mask takes away.
        low[: high.numel()] ^= (high << _TURN) ^ ((high >> (64 - _TURN)) & ((1 << _TURN) - 1))
        words, level = low, level + 1
    return words


def _factor(index: int) -> int:
    return _signed((0x9E3779B97F4A7C15 * (2 * index + 1) ^ 0x2545F4914F6CDD1D << 1) & _MASK | 1)


def _chain(hashed: int, words: Iterable[int]) -> int:
    for word in words:
        hashed = ((hashed ^ (word & _MASK)) * _PRIME) & _MASK
        hashed ^= hashed >> 32
    return hashed


def _fetched(words: Sequence[torch.Tensor]) -> list[np.ndarray]:
    """On the host, in their order; what lies on one device comes together."""
    found: dict[int, np.ndarray] = {}
    for device in {one.device for one in words}:
        places = [place for place, one in enumerate(words) if one.device == device]
        together = torch.cat([words[place] for place in places]).cpu().numpy()
        ends = np.cumsum([words[place].numel() for place in places])
        found.update(zip(places, np.split(together, ends[:-1]), strict=True))
    return [found[place] for place in range(len(words))]


def _chains(parts: Sequence[np.ndarray]) -> list[int]:
    """``_chain`` of each, all at once."""
    order = sorted(range(len(parts)), key=lambda place: -len(parts[place]))
    lengths = np.array([len(parts[place]) for place in order])
    table = np.zeros((max(lengths, default=0), len(parts)), dtype=np.uint64)
    for row, place in enumerate(order):
        table[: len(parts[place]), row] = parts[place].view(np.uint64)
    hashed = np.full(len(parts), _BASIS, dtype=np.uint64)
    prime, half = np.uint64(_PRIME), np.uint64(32)
    for word, held in enumerate(table):
        # Longest first, so those that still have a word are in front.
        now = hashed[: int(np.searchsorted(-lengths, -word))]
        now ^= held[: len(now)]
        now *= prime
        now ^= now >> half
    return [int(hashed[row]) for row in np.argsort(order)]


def _described(hashed: int, fold: Folded) -> int:
    hashed = _chain(hashed, (fold.size, len(fold.shape), *fold.shape))
    return _signed(_chain_bytes(hashed, fold.dtype.encode()))


def _chain_bytes(hashed: int, held: bytes) -> int:
    padded = held + bytes(-len(held) % 8)
    return _chain(hashed, (len(held), *struct.unpack(f"<{len(padded) // 8}q", padded)))


def _signed(hashed: int) -> int:
    return hashed - (1 << 64) if hashed >> 63 else hashed

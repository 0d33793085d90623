"""Where the heads of queries and keys lie in the parameters of a model: said by its user, as plain values."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

_Item = TypeVar("_Item")
Order = Literal["blocks", "groups"]


@dataclass(frozen=True)
class Part:
    """One projection, or its part of a fused one.

    Attributes:
        parameter: full name of a matrix.
        starts: first output of each head; the others of the head follow it.
        transposed: the matrix is (in, out), as in GPT-2's ``Conv1D``, and not (out, in), as in ``nn.Linear``.
        scale: full name of the scale of a norm of queries or keys, shape (head_size,) or (heads * head_size,).
    """

    parameter: str
    starts: tuple[int, ...]
    transposed: bool = False
    scale: str | None = None


@dataclass(frozen=True)
class Projections:
    """The queries and keys of one layer.

    Attributes:
        layer: what the layer is called in readings and alarms.
        head_size: outputs of one head.
        query, key: key heads divide query heads; neighbours share one.
        norm: full name of the scale of the norm whose output both read, shape (in,); None if there is none to fold.
    """

    layer: str
    head_size: int
    query: Part
    key: Part
    norm: str | None = None

    def __post_init__(self) -> None:
        queries, keys = len(self.query.starts), len(self.key.starts)
        if self.head_size < 1 or not keys or not queries or queries % keys:
            raise ValueError(
                f"{self.layer}: {queries} query heads and {keys} key heads of size {self.head_size} do not fit; "
                "key heads must divide query heads"
            )

    def key_head(self, head: int) -> int:
        """Which key head a query head looks at."""
        return head * len(self.key.starts) // len(self.query.starts)


def fused(
    layer: str,
    parameter: str,
    outputs: int,
    heads: int,
    key_heads: int | None = None,
    *,
    order: Order = "blocks",
    transposed: bool = False,
    norm: str | None = None,
) -> Projections:
    """Queries, keys and values in one matrix.

    Args:
        outputs: of the matrix: (heads + 2 * key_heads) * head_size.
        heads: of queries.
        key_heads: of keys and values; as many as ``heads`` by default.
        order: ``blocks``: all queries, all keys, all values (GPT-2, Phi-3); ``groups``: for each key head its queries,
            its key, its value (GPT-NeoX, Megatron).

    Raises:
        ValueError: for outputs that do not divide so.
    """
    keys = heads if key_heads is None else key_heads
    if heads < 1 or keys < 1 or heads % keys or outputs % (heads + 2 * keys):
        raise ValueError(
            f"{parameter}: {outputs} outputs do not divide into {heads} heads of queries and {keys} each of keys and "
            "values; say how many with heads= and key_heads="
        )
    size = outputs // (heads + 2 * keys)
    if order == "blocks":
        queries = tuple(range(0, heads * size, size))
        held = tuple(range(heads * size, (heads + keys) * size, size))
    else:
        group = heads // keys
        queries = tuple(((group + 2) * (head // group) + head % group) * size for head in range(heads))
        held = tuple(((group + 2) * head + group) * size for head in range(keys))
    return Projections(layer, size, Part(parameter, queries, transposed), Part(parameter, held, transposed), norm)


def separate(
    layer: str,
    query: str,
    key: str,
    outputs: tuple[int, int],
    heads: int,
    *,
    scales: tuple[str | None, str | None] = (None, None),
    transposed: bool = False,
    norm: str | None = None,
) -> Projections:
    """Queries and keys in a matrix each.

    Args:
        outputs: of the two matrices: heads * head_size, and a number of heads for the second that divides ``heads``.
        heads: of queries.
        scales: names of the scales of norms of queries and of keys, if there are any.

    Raises:
        ValueError: for outputs that do not divide so.
    """
    size = outputs[0] // heads if heads > 0 else 0
    if not size or outputs[0] % heads or outputs[1] % size:
        raise ValueError(
            f"{query} and {key}: {outputs[0]} and {outputs[1]} outputs do not divide into {heads} heads of queries and "
            "heads of keys of the same size; say how many with heads="
        )
    first, second = (
        Part(name, tuple(range(0, length, size)), transposed, scale)
        for name, length, scale in zip((query, key), outputs, scales, strict=True)
    )
    return Projections(layer, size, first, second, norm)


def every_head(where: Sequence[Projections]) -> tuple[tuple[str, int], ...]:
    """All (layer, head), in the order of layers.

    Raises:
        ValueError: if two layers have the same name.
    """
    names = [found.layer for found in where]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two layers are called {name}; readings could not be told apart")
    return tuple((found.layer, head) for found in where for head in range(len(found.query.starts)))


def share(items: Sequence[_Item], place: int = 0, peers: int = 1, turn: int = 0, turns: int = 1) -> tuple[_Item, ...]:
    """What one peer looks at in one turn: in ``turns`` turns all peers together come to each item exactly once.

    Args:
        place: of this peer, in 0..peers-1.
        turn: counts on for ever.

    Raises:
        ValueError: for a place that is none of the peers', or numbers below 1.
    """
    if peers < 1 or turns < 1 or not 0 <= place < peers:
        raise ValueError(f"place {place} of {peers} peers in {turns} turns is none")
    return tuple(items[(turn % turns) * peers + place :: peers * turns])

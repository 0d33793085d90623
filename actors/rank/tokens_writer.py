"""Writing tokenised documents as a token data set."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import fs

from ...conf.errors import DataError
from .tokens_index import INDEX, TYPES, Index, Shard, find


def write_tokens(
    path: str | Path,
    documents: Iterable[Any],
    *,
    end: int,
    vocabulary: int,
    filesystem: fs.FileSystem | None = None,
    shard: int = 2**27,
    rows: int = 2**14,
) -> int:
    """Write documents one after the other as a folder that ``everstep.Tokens`` reads; holds one record batch in memory.

    Args:
        path: a folder, or its URI (``s3://bucket/folder``). One process writes it.
        documents: token ids of each, 1-d: lists, arrays or tensors of whole numbers. An empty one adds nothing.
        end: id that is written after every document.
        vocabulary: ids are in 0..vocabulary-1; decides how many bytes a token takes (1, 2 or 4).
        filesystem: where ``path`` lies, if it is not a local one or a URI.
        shard: most tokens of a file, rounded down to whole record batches.
        rows: tokens of a record batch: the least that is read at once from object storage.

    Returns:
        How many tokens were written, the ends of documents included.

    Raises:
        DataError: no token at all, an id outside of the vocabulary, or a folder that already holds a data set.
    """
    for name, value in (("vocabulary", vocabulary), ("rows", rows), ("shard", shard)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise DataError(f"write_tokens({name}={value!r}) must be a whole number of at least 1")
    if vocabulary > 2**32 or not 0 <= end < vocabulary:
        raise DataError(
            f"write_tokens(end={end}, vocabulary={vocabulary}): ids must be in 0..vocabulary-1, below 2**32"
        )
    filesystem, folder = find(path, filesystem)
    if filesystem.get_file_info(f"{folder}/{INDEX}").type != fs.FileType.NotFound:
        raise DataError(f"{path} already holds a token data set: delete it, or choose another folder")
    filesystem.create_dir(folder, recursive=True)

    kind = next(name for name, ids in TYPES.items() if vocabulary <= ids)
    batches = _batches(documents, end, vocabulary, np.dtype(kind), rows)
    empty = Index(kind, vocabulary, end, rows, ())
    shards: list[Shard] = []
    while written := _write_shard(filesystem, folder, len(shards), empty.schema, batches, max(1, shard // rows)):
        shards.append(written)
    if not shards:
        raise DataError(f"there is no token to write to {path}: every document is empty")
    index = Index(kind, vocabulary, end, rows, tuple(shards))
    # Appears whole, and after all that it speaks of.
    with filesystem.open_output_stream(f"{folder}/{INDEX}.part") as file:
        file.write(index.text().encode())
    filesystem.move(f"{folder}/{INDEX}.part", f"{folder}/{INDEX}")
    return sum(one.tokens for one in shards)


def _write_shard(
    filesystem: fs.FileSystem,
    folder: str,
    number: int,
    schema: pa.Schema,
    batches: Iterator[NDArray[Any]],
    most: int,
) -> Shard | None:
    """A file of the next ``most`` batches; None if there is none left."""
    batch = next(batches, None)
    if batch is None:
        return None
    name = f"{number:05}.arrow"
    tokens = count = 0
    with filesystem.open_output_stream(f"{folder}/{name}") as file, pa.ipc.new_file(file, schema) as writer:
        while batch is not None:
            writer.write_batch(pa.record_batch([pa.array(batch)], schema=schema))
            tokens, count = tokens + len(batch), count + 1
            batch = next(batches, None) if count < most else None
    return Shard(name, tokens, filesystem.get_file_info(f"{folder}/{name}").size)


def _batches(
    documents: Iterable[Any], end: int, vocabulary: int, kind: np.dtype[Any], rows: int
) -> Iterator[NDArray[Any]]:
    """The stream of all documents, cut every ``rows`` tokens."""
    waiting: list[NDArray[Any]] = []
    count = 0
    for number, document in enumerate(documents):
        tokens = np.asarray(document)
        if tokens.size == 0:
            continue
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
            raise DataError(
                f"document {number} is not a 1-d sequence of whole numbers but {tokens.dtype} {tokens.shape}"
            )
        low, high = int(tokens.min()), int(tokens.max())
        if low < 0 or high >= vocabulary:
            outside = low if low < 0 else high
            raise DataError(f"document {number} holds token {outside}, which is not in 0..{vocabulary - 1}")
        waiting += [tokens.astype(kind), np.asarray([end], kind)]
        count += len(tokens) + 1
        if count >= rows:
            stream = np.concatenate(waiting)
            whole = count // rows * rows
            yield from stream[:whole].reshape(-1, rows)
            waiting, count = [stream[whole:]], count - whole
    if count:
        yield np.concatenate(waiting)

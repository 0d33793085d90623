"""A data set of token blocks over Arrow files: memory-mapped on local disks, read in parts from object storage."""

from bisect import bisect_right
from collections.abc import Callable
from functools import lru_cache, partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from pyarrow import fs
from torch import Tensor
from torch.utils.data import Dataset

from ...conf.errors import DataError
from .tokens_index import INDEX, Index, find

_OPEN_SHARDS = 64


class Tokens(Dataset[Tensor]):
    """Documents, packed into blocks of one length.

    The documents of all shards lie end to end, each followed by the end-of-document id, and are cut every ``block``
    tokens, wherever documents end. Sample n is tokens n·block to n·block + block of that stream, an int64 tensor of
    shape [block + 1]: its first ``block`` tokens are what a model reads, its last ``block`` what it predicts.
    Neighbours share one token, so every token but the first is a target exactly once an epoch; a tail shorter than a
    block is left out. Nothing is kept between samples: sample n depends on the files and n alone.

    Opening reads the index and lists the folder. A sample reads the one or two record batches that hold it (more if a
    block is longer than a batch); in a mapped file no more than its own pages.

    Args:
        path: a folder that ``write_tokens`` has made, or its URI (``s3://bucket/folder``).
        block: tokens that the model reads of one sample.
        filesystem: where ``path`` lies, if it is not a local one or a URI. Must be picklable to be read by workers.

    Attributes:
        vocabulary: token ids are in 0..vocabulary-1.
        end: id that follows every document.
        token_count: tokens in all, ends of documents included.

    Raises:
        DataError: no whole data set, another format, or a block that is longer than all tokens.
    """

    def __init__(self, path: str | Path, block: int, filesystem: fs.FileSystem | None = None) -> None:
        if not isinstance(block, int) or isinstance(block, bool) or block < 1:
            raise DataError(f"Tokens(block={block!r}) must be a whole number of at least 1")
        opened, folder = find(path, filesystem)
        index = _read_index(opened, folder, str(path))
        self.block = block
        self.vocabulary = index.vocabulary
        self.end = index.end
        self._rows = index.rows
        self._ends = tuple(accumulate(shard.tokens for shard in index.shards))
        self.token_count = self._ends[-1]
        if block >= self.token_count:
            raise DataError(
                f"{path} holds {self.token_count} tokens: too few for one block of {block} and a target more"
            )
        # Another process opens the files itself.
        self._made_of = (path if "://" in str(path) or filesystem else folder, block, filesystem)
        # Not a bound method: a cycle would keep files open.
        self._shard: Callable[[int], pa.RecordBatchFileReader] = lru_cache(_OPEN_SHARDS)(
            partial(_open_shard, opened, folder, index)
        )

    def __len__(self) -> int:
        return (self.token_count - 1) // self.block

    def __getitem__(self, sample: int) -> Tensor:
        if not 0 <= sample < len(self):
            raise IndexError(f"sample {sample} of {len(self)}")
        tokens = np.empty(self.block + 1, np.int64)
        position = sample * self.block
        filled = 0
        while filled < len(tokens):
            piece = self._from(position + filled)[: len(tokens) - filled]
            tokens[filled : filled + len(piece)] = piece
            filled += len(piece)
        return torch.from_numpy(tokens)

    def __reduce__(self) -> tuple[type["Tokens"], tuple[Any, ...]]:
        return Tokens, self._made_of

    def _from(self, position: int) -> NDArray[Any]:
        """The record batch that holds this position of the stream, from there on; at least one token."""
        number = bisect_right(self._ends, position)
        first = self._ends[number - 1] if number else 0
        batch, row = divmod(position - first, self._rows)
        column = self._shard(number).get_batch(batch).column(0)
        if len(column) != min(self._rows, self._ends[number] - first - batch * self._rows):
            raise DataError(f"record batch {batch} of shard {number} has {len(column)} tokens: write the data set anew")
        tokens: NDArray[Any] = column.to_numpy()[row:]
        return tokens


def _read_index(filesystem: fs.FileSystem, folder: str, path: str) -> Index:
    """The index, once all files that it lists are there whole."""
    try:
        found = filesystem.get_file_info(fs.FileSelector(folder))
        sizes = {info.base_name: info.size for info in found}
        if INDEX not in sizes:
            raise DataError(f"{path} holds no {INDEX}: it is no token data set, or its writing did not come to its end")
        with filesystem.open_input_file(f"{folder}/{INDEX}") as file:
            index = Index.parse(file.read(), f"{path}/{INDEX}")
    except OSError as error:
        raise DataError(f"{path} cannot be opened: {str(error).splitlines()[0]}") from None
    for shard in index.shards:
        if sizes.get(shard.name) != shard.bytes:
            there = f"has {sizes[shard.name]} bytes" if shard.name in sizes else "is not there"
            raise DataError(f"{path}/{shard.name} {there} and should have {shard.bytes} bytes: copy or write it anew")
    return index


def _open_shard(filesystem: fs.FileSystem, folder: str, index: Index, number: int) -> pa.RecordBatchFileReader:
    shard = index.shards[number]
    where = f"{folder}/{shard.name}"
    local = isinstance(filesystem, fs.LocalFileSystem)
    try:
        reader = pa.ipc.open_file(pa.memory_map(where) if local else filesystem.open_input_file(where))
    except pa.ArrowInvalid as error:
        raise DataError(f"{where} is no Arrow file: {str(error).splitlines()[0]}") from None
    batches = -(-shard.tokens // index.rows)
    if reader.schema != index.schema or reader.num_record_batches != batches:
        found = ", ".join(f"{field.name}: {field.type}" for field in reader.schema)
        raise DataError(
            f"{where} holds {reader.num_record_batches} record batches of ({found}), the index says {batches} of "
            f"(token: {index.type}): write the data set anew"
        )
    return reader

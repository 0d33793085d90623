"""The index of a token data set: what its shards hold. It is written last, so a data set without one is not whole.

A token data set is a folder: ``00000.arrow``, ``00001.arrow``, ... are Arrow IPC files with one column ``token``, cut
into record batches of the same number of tokens (the last of a shard may be shorter); ``index.json`` says how many
tokens and bytes each has. Documents lie end to end through all shards, each followed by the end-of-document id.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs

from ...conf.errors import DataError

INDEX = "index.json"
_FORMAT = "everstep tokens 1"
# The smallest type that holds every id is used.
TYPES = {"uint8": 2**8, "uint16": 2**16, "uint32": 2**32}


@dataclass(frozen=True)
class Shard:
    """One file of a token data set.

    Attributes:
        tokens, bytes: how many it holds, and its size.
    """

    name: str
    tokens: int
    bytes: int


@dataclass(frozen=True)
class Index:
    """What a token data set holds.

    Attributes:
        type: of its tokens, a key of ``TYPES``.
        vocabulary: token ids are in 0..vocabulary-1.
        end: id that follows every document.
        rows: tokens in a record batch.
    """

    type: str
    vocabulary: int
    end: int
    rows: int
    shards: tuple[Shard, ...]

    @property
    def schema(self) -> pa.Schema:
        """Of every shard."""
        return pa.schema([pa.field("token", pa.type_for_alias(self.type), nullable=False)])

    def text(self) -> str:
        """What ``parse`` reads."""
        return json.dumps({"format": _FORMAT, **asdict(self)}, indent=1) + "\n"

    @classmethod
    def parse(cls, text: bytes, where: str) -> "Index":
        """The index that was written.

        Raises:
            DataError: it is not one, or it lists no tokens.
        """
        try:
            said: dict[str, Any] = json.loads(text)
            if said.pop("format") != _FORMAT:
                raise ValueError
            index = cls(**{**said, "shards": tuple(Shard(**shard) for shard in said["shards"])})
            known = index.type in TYPES and index.rows > 0
            empty = not index.shards or min(shard.tokens for shard in index.shards) < 1
        except (ValueError, TypeError, KeyError, AttributeError):
            known = False
        if not known:
            raise DataError(f"{where} is not the index of a token data set that this version reads: write it anew")
        if empty:
            raise DataError(f"{where} lists no tokens, or a shard without any: write the data set anew")
        return index


def find(path: str | Path, filesystem: fs.FileSystem | None) -> tuple[fs.FileSystem, str]:
    """The file system that a path or URI means, and the path there.

    Raises:
        DataError: nothing here reads such a URI.
    """
    if filesystem is not None:
        return filesystem, str(path).rstrip("/")
    if "://" not in str(path):
        return fs.LocalFileSystem(), str(Path(path).absolute())
    try:
        found, place = fs.FileSystem.from_uri(str(path))
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be opened: {str(error).splitlines()[0]}") from None
    return found, place.rstrip("/")

"""The safetensors format: a length, a header in JSON, then the bytes of each tensor. No tensors are needed to write it.

See https://github.com/huggingface/safetensors. Everything lies at multiples of its item size, so readers can map it.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...conf.errors import SavedStateError

_LENGTH = struct.Struct("<Q")
_ALIGNED = 64
_METADATA = "__metadata__"
# Names of dtypes, by ours.
DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}


@dataclass(frozen=True)
class Entry:
    """One tensor; ``dtype`` is torch's name for it, ``bytes`` its size."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    item: int = 1


@dataclass(frozen=True)
class Layout:
    """A file.

    Attributes:
        header: its first bytes.
        offsets: by name, where the bytes of a tensor begin, counted from the start of the file.
        bytes: of the whole file.
    """

    header: bytes
    offsets: Mapping[str, int]
    bytes: int


def layout(entries: Sequence[Entry], metadata: Mapping[str, str]) -> Layout:
    """Where each tensor lies. A dtype that the format does not know is written as plain bytes."""
    table: dict[str, Any] = {_METADATA: dict(metadata)}
    places: dict[str, int] = {}
    end = 0
    # The widest items first: then everything is aligned without holes, which the format forbids.
    for entry in sorted(entries, key=lambda entry: -entry.item):
        known = DTYPES.get(entry.dtype)
        shape = list(entry.shape) if known else [entry.bytes]
        table[entry.name] = {"dtype": known or "U8", "shape": shape, "data_offsets": [end, end + entry.bytes]}
        places[entry.name] = end
        end += entry.bytes
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-(_LENGTH.size + len(text)) % _ALIGNED)
    header = _LENGTH.pack(len(text)) + text
    return Layout(header, {name: len(header) + place for name, place in places.items()}, len(header) + end)


def places(data: memoryview) -> tuple[dict[str, tuple[int, int]], dict[str, str]]:
    """By name, where the bytes of each tensor begin and end in a whole file; and its metadata.

    Raises:
        SavedStateError: it is no such file.
    """
    try:
        (length,) = _LENGTH.unpack(data[: _LENGTH.size])
        start = _LENGTH.size + length
        table = json.loads(bytes(data[_LENGTH.size : start]))
        metadata = table.pop(_METADATA, {})
        return {name: (start + said["data_offsets"][0], start + said["data_offsets"][1]) for name, said in
                table.items()}, metadata  # fmt: skip
    except (struct.error, ValueError, KeyError, TypeError, IndexError):
        raise SavedStateError("it is not in the safetensors format") from None

"""A state as parts: who saves which of its tensors, under which names, and back from all parts to the state."""

import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from ...conf.errors import SavedStateError
from ...policies.shards import divide
from ..saved import safetensors
from ..saved.safetensors import Entry, Layout
from . import stream

# What is no tensor; it goes with the first part.
_STRUCTURE = "everstep.structure"


@dataclass(frozen=True)
class Packed:
    """A state taken apart; its tensors stay where they are.

    Attributes:
        structure: everything else.
        versions: of the tensors as autograd counts their changes, when this was made.
    """

    state: Any
    structure: bytes
    tensors: Sequence[Tensor]
    versions: tuple[int, ...]

    @property
    def unchanged(self) -> bool:
        """Whether nobody has written to a tensor since; a kernel that does not tell is not noticed."""
        return self.versions == _versions(self.tensors)


@dataclass(frozen=True)
class Portion:
    """What one rank saves: live tensors, and where each belongs in the file.

    Attributes:
        place: of this part.
        parts: how many there are.
        tensors: by name.
        layout: of the file.
        structure: what is no tensor; empty but in the first part.
    """

    place: int
    parts: int
    tensors: Mapping[str, Tensor]
    layout: Layout
    structure: bytes

    @torch.no_grad()
    def copy_to(self, memory: Tensor) -> None:
        """Make the file.

        Args:
            memory: as many bytes as the layout says.
        """
        header = self.layout.header
        memory[: len(header)] = torch.frombuffer(bytearray(header), dtype=torch.uint8)
        for name, tensor in self.tensors.items():
            begin = self.layout.offsets[name]
            held = memory[begin : begin + tensor.nbytes]
            held.view(tensor.dtype).view(tensor.shape).copy_(tensor, non_blocking=True)
        if self.structure:
            begin = self.layout.offsets[_STRUCTURE]
            memory[begin : begin + len(self.structure)] = torch.frombuffer(bytearray(self.structure), dtype=torch.uint8)


def packed(state: Any) -> Packed:
    """Take a state apart; nothing is copied but what is no tensor."""
    structure, tensors = stream.pack(state)
    return Packed(state, structure, tensors, _versions(tensors))


def portion(taken: Packed, place: int, parts: int, facts: Mapping[str, str]) -> Portion:
    """The part of a state that rank ``place`` of ``parts`` saves."""
    tensors = taken.tensors
    names = _names(taken.state, tensors)
    mine = divide([tensor.nbytes for tensor in tensors], parts)[place]
    chosen = {names[each]: tensors[each] for each in mine}
    entries = [
        Entry(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tensor.nbytes, tensor.itemsize)
        for name, tensor in chosen.items()
    ]
    blob = b""
    metadata = {"format": "pt", **facts, "part": f"{place} of {parts}"}
    if place == 0:
        blob = pickle.dumps((taken.structure, names), protocol=pickle.HIGHEST_PROTOCOL)
        entries.append(Entry(_STRUCTURE, "uint8", (len(blob),), len(blob)))
    return Portion(place, parts, chosen, safetensors.layout(entries, metadata), blob)


def joined(parts: Sequence[Tensor]) -> Any:
    """The state that all parts make up, each the bytes of a whole file.

    Raises:
        SavedStateError: a tensor is missing.
    """
    raw: dict[str, Tensor] = {}
    for memory in parts:
        found, _ = safetensors.places(memory.numpy().data)
        raw |= {name: memory[begin:end] for name, (begin, end) in found.items()}
    if _STRUCTURE not in raw:
        raise SavedStateError("no part holds its structure")
    structure, names = pickle.loads(raw[_STRUCTURE].numpy().tobytes())
    if missing := [name for name in names if name not in raw]:
        raise SavedStateError(f"no part holds {missing[0]}")
    return stream.unpack(structure, [raw[name] for name in names])


def _names(state: Any, tensors: Sequence[Tensor]) -> list[str]:
    """By place, what each tensor is called: its first way from the state."""
    ways: dict[tuple[Any, ...], str] = {}
    for way, tensor in _walk("", state):
        ways.setdefault(stream.memory_of(tensor), way)
    taken: set[str] = set()
    names = []
    for place, tensor in enumerate(tensors):
        name = ways.get(stream.memory_of(tensor), "tensor")
        # Two ways may read alike; and what lies inside of an object has none.
        name = name if name not in taken and name != "tensor" else f"{name}#{place}"
        taken.add(name)
        names.append(name)
    return names


def _walk(way: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        if value.layout is torch.strided and not value.is_quantized:
            yield way, value
        return
    inside: Iterator[tuple[Any, Any]] | None = None
    if isinstance(value, Mapping):
        inside = iter(value.items())
    elif isinstance(value, list | tuple):
        inside = iter(enumerate(value))
    elif is_dataclass(value) and not isinstance(value, type):
        inside = ((item.name, getattr(value, item.name)) for item in fields(value))
    for key, held in inside or ():
        yield from _walk(".".join(filter(None, (way, str(key)))), held)


def _versions(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    return tuple(tensor._version for tensor in tensors)

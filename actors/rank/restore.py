"""Reads a saved state back from storage, checked to the bit."""

import hashlib

import torch
from torch import Tensor

from ...conf.errors import SavedStateError
from ..saved.catalogue import Catalogue
from ..saved.manifest import folder_of
from ..saved.storage import Storage
from .parts import joined
from .snapshots import Saved


def read(storage: Storage | None, step: int) -> Saved:
    """The state after ``step`` steps, in host memory.

    Raises:
        SavedStateError: it is not there, or not whole.
    """
    if storage is None:
        raise SavedStateError("the run has no storage")
    parts: list[Tensor] = []
    for part in Catalogue(storage).manifest(step).parts:
        memory = torch.empty(part.bytes, dtype=torch.uint8)
        storage.read_into(f"{folder_of(step)}/{part.file}", memory.numpy().data)
        if hashlib.sha256(memory.numpy().data).hexdigest() != part.sha256:
            raise SavedStateError(f"{part.file} is damaged: its SHA-256 is another one")
        parts.append(memory)
    held = joined(parts)
    if not isinstance(held, Saved) or held.step != step:
        raise SavedStateError(f"step {step} holds something else")
    return held

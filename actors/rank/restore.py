"""Reads a saved state back, from storage or from vaults, checked to the bit."""

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from ...conf.errors import ExchangeError, SavedStateError
from .. import exchange
from ..node.vault_messages import RESTORE, Copies
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
    return _whole(parts, step)


def read_from_vaults(copies: Sequence[Copies], step: int, token: str) -> Saved:
    """The same from the vaults that hold it; of several copies, any will do.

    Args:
        copies: of every part.
        token: the run's secret.

    Raises:
        SavedStateError: of some part there is no copy that can be read.
    """
    if not copies:
        raise SavedStateError("no vault holds it")
    return _whole([_copy(held, token) for held in copies], step)


def _copy(held: Copies, token: str) -> Tensor:
    memory = torch.empty(held.part.bytes, dtype=torch.uint8)
    problems = []
    for host, port in held.addresses:
        try:
            exchange.fetch((host, port), token, held.part.name, RESTORE, memory.numpy().data, held.part.crc32)
        except ExchangeError as error:
            problems.append(f"at {host}:{port}: {error}")
        else:
            return memory
    raise SavedStateError(f"{held.part.name} cannot be got from any vault: {'; '.join(problems) or 'none holds it'}")


def _whole(parts: Sequence[Tensor], step: int) -> Saved:
    held = joined(parts)
    if not isinstance(held, Saved) or held.step != step:
        raise SavedStateError(f"step {step} holds something else")
    return held

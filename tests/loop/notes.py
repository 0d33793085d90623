"""What a training function writes down, to the bit, so that two runs of it can be compared."""

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ray import cloudpickle

# Ranks are other processes and cannot import the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Notes:
    """Appends lines to a file of this process.

    Args:
        folder: where the file goes.
    """

    def __init__(self, folder: str) -> None:
        self._file = os.open(Path(folder, f"{os.getpid()}.notes"), os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)

    def write(self, *key: Any, **facts: Any) -> None:
        """One line, whole even if the process is killed right after.

        Args:
            key: what the facts are of; whoever writes the same key must write the same facts.
            facts: numbers, tensors, containers of them, or objects with ``state_dict``.
        """
        line = json.dumps([json.dumps(plain(key)), plain(facts)])
        os.write(self._file, f"{line}\n".encode())


def plain(value: Any) -> Any:
    """The value as JSON can hold it, with every bit that matters."""
    if isinstance(value, torch.Tensor):
        held = value.detach().contiguous()
        digest = hashlib.sha256(held.flatten().view(torch.uint8).numpy().tobytes()).hexdigest()[:16]
        return f"{held.dtype} {tuple(held.shape)} {digest}"
    if isinstance(value, float | np.floating):
        return float(value).hex()
    if isinstance(value, bool | int | str | None):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(held) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return [plain(held) for held in value]
    if hasattr(value, "state_dict"):
        return plain(value.state_dict())
    return type(value).__qualname__


def read(folder: Path) -> list[dict[str, Any]]:
    """Facts by key, of each process."""
    return [
        merged([json.loads(line) for line in path.read_text().splitlines()]) for path in sorted(folder.glob("*.notes"))
    ]


def merged(lines: Iterable[Sequence[Any]]) -> dict[str, Any]:
    """Facts by key.

    Raises:
        AssertionError: two of one key differ.
    """
    facts: dict[str, Any] = {}
    for key, held in lines:
        assert facts.setdefault(key, held) == held, f"it was noted in two ways: {key}"
    return facts

"""SHA-256 of tensors and of whole state dicts."""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

# What wrappers put before or between names; the weights are the same without them.
_WRAPPERS = {"_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}


def tensor_sha256(tensor: Tensor) -> str:
    """Of dtype, shape and bytes."""
    digest = hashlib.sha256()
    _update(digest, tensor)
    return digest.hexdigest()


def weights_sha256(state: Mapping[str, Tensor]) -> str:
    """Over names (sorted, wrapper prefixes stripped), dtypes, shapes and bytes of a state dict."""
    digest = hashlib.sha256()
    plain = {_plain(name): tensor for name, tensor in state.items()}
    for name in sorted(plain):
        digest.update(name.encode())
        _update(digest, plain[name])
    return digest.hexdigest()


def state_sha256(objects: Mapping[str, Any]) -> str:
    """Over the state dicts of several objects, whatever they hold."""
    digest = hashlib.sha256()
    for name in sorted(objects):
        digest.update(name.encode())
        _digest(digest, objects[name].state_dict())
    return digest.hexdigest()


def value_sha256(value: Any) -> str:
    """Of anything: tensors, arrays and plain values in containers; of other objects only their kind."""
    digest = hashlib.sha256()
    _digest(digest, value)
    return digest.hexdigest()


def _digest(digest: "hashlib._Hash", value: Any) -> None:
    """Of nested containers; what is neither a tensor, a container nor a plain value goes by its type."""
    if isinstance(value, Tensor):
        _update(digest, value)
    elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
        digest.update(f"{value.dtype}{value.shape}".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, Mapping):
        for key in sorted(value, key=repr):
            digest.update(repr(key).encode())
            _digest(digest, value[key])
    elif isinstance(value, list | tuple | set):
        digest.update(f"{type(value).__name__}{len(value)}".encode())
        for part in sorted(value, key=repr) if isinstance(value, set) else value:
            _digest(digest, part)
    elif isinstance(value, str | bytes | int | float | bool | complex | None):
        digest.update(repr(value).encode())
    else:
        digest.update(type(value).__qualname__.encode())


def _update(digest: "hashlib._Hash", tensor: Tensor) -> None:
    held = tensor.detach().cpu().contiguous()
    digest.update(f"{held.dtype}{tuple(held.shape)}".encode())
    digest.update(held.flatten().view(torch.uint8).numpy().data)


def _plain(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)

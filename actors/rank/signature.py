"""SHA-256 of tensors and of whole state dicts."""

import hashlib
from collections.abc import Mapping

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


def _update(digest: "hashlib._Hash", tensor: Tensor) -> None:
    held = tensor.detach().cpu().contiguous()
    digest.update(f"{held.dtype}{tuple(held.shape)}".encode())
    digest.update(held.flatten().view(torch.uint8).numpy().data)


def _plain(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)

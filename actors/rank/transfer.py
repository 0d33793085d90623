"""Proof that a transfer is half done: an output buffer, filled with a mark before, seen partly overwritten."""

import time

from torch import Tensor

_PROBES_PER_PART = 64
_PATIENCE_S = 5.0


def await_partial_transfer(received: Tensor, world: int, rank: int) -> str:
    """Watch a buffer of NaN marks until parts of peers have arrived, but not all of them.

    Returns:
        The evidence, in one line; empty if the buffer was full before it was seen partly written.
    """
    parts = received.view(world, -1)
    length = parts.shape[1]
    stride = max(1, length // _PROBES_PER_PART)
    peers = [place for place in range(world) if place != rank]
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        probes = parts[:, ::stride][peers]
        written = int((~probes.isnan()).sum())
        if 0 < written < probes.numel():
            return f"{written} of {probes.numel()} probes of the output buffer written by peers"
        if written == probes.numel():
            return ""
    return ""

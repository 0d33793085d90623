"""Proof that a transfer is half done: an output buffer, filled with a mark before, seen partly overwritten."""

import time

import numpy as np
from torch import Tensor

_PROBES_PER_PART = 64
_PATIENCE_S = 5.0


def await_partial_transfer(received: Tensor, world: int, rank: int) -> str:
    """Watch a buffer of NaN marks until parts of peers have arrived, but not all of them.

    Returns:
        The evidence, in one line; empty if the buffer was full before it was seen partly written.
    """
    # The window is short, so the look must be: numpy reads a hundred values in microseconds.
    parts = received.numpy().reshape(world, -1)
    stride = max(1, parts.shape[1] // _PROBES_PER_PART)
    peers = [place for place in range(world) if place != rank]
    total = parts[peers, ::stride].size
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        written = total - int(np.count_nonzero(np.isnan(parts[peers, ::stride])))
        if written == total:
            break
        if written:
            return f"{written} of {total} probes of the output buffer written by peers"
    return ""

"""Random streams that belong to the work and not to the worker."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def seed_everything(seed: int) -> None:
    """Seed torch (the device in use too), numpy and random from 64 bits.

    ``torch.manual_seed`` would queue a call for every device kind that is not yet awake, at each microbatch.
    """
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    random.seed(seed)


@contextmanager
def streams_kept() -> Iterator[None]:
    """What is drawn inside does not show outside: torch (the device in use too), numpy and random go on as before."""
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    held = torch.default_generator.get_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.default_generator.set_state(held[0])
        np.random.set_state(held[1])
        random.setstate(held[2])
        if devices:
            torch.cuda.set_rng_state_all(devices)

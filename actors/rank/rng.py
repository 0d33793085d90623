"""Random streams that belong to the work and not to the worker."""

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

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
    held = streams()
    try:
        yield
    finally:
        set_streams(held)
        if devices:
            torch.cuda.set_rng_state_all(devices)


def streams() -> dict[str, Any]:
    """How far the streams of this process are: torch (the device in use too), numpy and random."""
    return {
        "torch": torch.default_generator.get_state(),
        "device": torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None,
        "numpy": np.random.get_state(),
        "random": random.getstate(),
    }


def set_streams(held: Mapping[str, Any]) -> None:
    """Go on from there."""
    torch.default_generator.set_state(held["torch"])
    if held["device"] is not None and torch.cuda.is_initialized():
        torch.cuda.set_rng_state(held["device"])
    np.random.set_state(held["numpy"])
    random.setstate(held["random"])

"""Random streams that belong to the work and not to the worker."""

import random

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

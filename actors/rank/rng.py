"""Random streams that belong to the work and not to the worker."""

import random

import numpy as np
import torch


def seed_everything(seed: int) -> None:
    """Seed torch (all devices), numpy and random from 64 bits."""
    torch.manual_seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    random.seed(seed)

"""Data sets that worker processes can import; run as a program, a rank that loads with workers until it is killed."""

import os
import random
from typing import Any

import numpy as np
import torch


class Augmented:
    """Every sample draws from all three streams."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, item: int) -> dict[str, Any]:
        drawn = {"torch": float(torch.rand(())), "numpy": float(np.random.rand()), "random": random.random()}
        return Sample({"item": item, **drawn, "pid": os.getpid()})


class Sample(dict[str, Any]):
    """Equal to another that was drawn elsewhere: the process that loaded it does not count."""

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Sample)
        return {**self, "pid": 0} == {**other, "pid": 0}

    __hash__ = None  # type: ignore[assignment]


class Broken:
    """One sample cannot be read."""

    def __init__(self, length: int, bad: int) -> None:
        self._length = length
        self._bad = bad

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, item: int) -> int:
        if item == self._bad:
            raise ValueError(f"sample {item} cannot be read")
        return item


def main() -> None:
    """Say which processes load, and wait to be killed."""
    import time

    from everstep.actors.rank.data import Loader, Microbatches

    loader = Loader(Microbatches(Augmented(50), 2, collate_fn=list, workers=2), 8, 1)
    pids: set[int] = set()
    deadline = time.monotonic() + 60
    step = 0
    while len(pids) < 2 and time.monotonic() < deadline:
        for index in range(8):
            batch = loader.load(step, index, [(step, other) for other in range(index + 1, 8)])
            pids |= {sample["pid"] for sample in batch}
        step += 1
    print(*pids, flush=True)
    time.sleep(60)


if __name__ == "__main__":
    import loading

    loading.main()

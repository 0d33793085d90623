"""Data sets that worker processes can import; run as a program, a rank that loads with workers until it is killed."""

import os
import random
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
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


class Remembered:
    """Sample n is n; remembers in a file, across processes, what was read by whom.

    Args:
        log: the file.
        kills: number of a sample that ends whoever reads it, the first ``lives`` times.
    """

    def __init__(self, length: int, log: Path, kills: int | None = None, lives: int = 0) -> None:
        self._length = length
        self._log = log
        self._kills = kills
        self._lives = lives

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, item: int) -> int:
        with self._log.open("a") as file:
            file.write(f"{item} {os.getpid()}\n")
        if item == self._kills and self.read().count(item) <= self._lives:
            os.kill(os.getpid(), signal.SIGKILL)
        return item

    def read(self) -> list[int]:
        """The samples that were read, by all processes."""
        return [int(line.split()[0]) for line in self._lines()]

    def readers(self) -> set[int]:
        """The processes that read."""
        return {int(line.split()[1]) for line in self._lines()}

    def _lines(self) -> list[str]:
        return self._log.read_text().splitlines() if self._log.exists() else []


class Broken:
    """Some samples cannot be read, each for a reason of its own."""

    def __init__(self, length: int, errors: Mapping[int, Callable[[], Exception]]) -> None:
        self._length = length
        self._errors = errors

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, item: int) -> int:
        if item in self._errors:
            raise self._errors[item]()
        return item


class TwoPartError(Exception):
    """Can be pickled, but not made again from what its pickle holds."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"{what}: {why}")


class Growing:
    """As long as the file says."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __len__(self) -> int:
        return int(self._file.read_text())

    def __getitem__(self, item: int) -> int:
        return item


class OnlyHere:
    """Another process that makes it again finds other files."""

    def __init__(self, length: int = 4) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, item: int) -> int:
        return item

    def __reduce__(self) -> Any:
        return OnlyHere, (self._length + 1,)


class Unmade:
    """Cannot be made again in another process."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, item: int) -> int:
        return item

    def __reduce__(self) -> Any:
        return _fails, ()


def _fails() -> None:
    raise FileNotFoundError("no such file on this node")


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

"""Microbatches: what they hold depends on (seed, step, index) alone, whoever loads them and where."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from everstep.actors.rank.data import Loader, Microbatches
from everstep.conf.errors import DataError

# Workers import it by name, whatever the name of this folder is.
sys.path.insert(0, str(Path(__file__).parent))
import loading
from loading import Augmented

SEED = 5


@pytest.fixture
def loaders() -> Iterator[list[Loader]]:
    """Closed at the end, whatever happens."""
    made: list[Loader] = []
    yield made
    for loader in made:
        loader.close()


# --- what is refused


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


class Sized:
    def __len__(self) -> int:
        return 3


@pytest.mark.parametrize("dataset", [Stream(), Sized(), iter([1]), (x for x in [1])])
def test_what_has_no_order_is_refused_with_the_reason(dataset: Any) -> None:
    with pytest.raises(DataError, match=rf"{type(dataset).__name__} is not a map-style data set .*given to another"):
        Microbatches(dataset, size=2)


def test_an_empty_data_set_is_refused() -> None:
    with pytest.raises(DataError, match="the data set is empty"):
        Microbatches([], size=2)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"size": 0}, r"Microbatches\(size=0\) must be a whole number of at least 1"),
        ({"size": 2.5}, r"Microbatches\(size=2\.5\)"),
        ({"size": 2, "workers": -1}, r"Microbatches\(workers=-1\) must be a whole number of at least 0"),
        ({"size": 2, "prefetch": 0}, r"Microbatches\(prefetch=0\)"),
    ],
)
def test_numbers_that_cannot_be_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(DataError, match=text):
        Microbatches([1, 2, 3], **settings)


def test_a_collate_fn_that_returns_nothing_is_named() -> None:
    loader = Loader(Microbatches([1, 2, 3], size=2, collate_fn=lambda items: None), 2, SEED)
    with pytest.raises(DataError, match="collate_fn returned nothing: it must return the batch"):
        loader.load(0, 0)


def test_a_data_set_that_changes_its_length_is_refused() -> None:
    data = [1, 2, 3]
    loader = Loader(Microbatches(data, size=2), 2, SEED)
    loader.load(0, 0)
    data.append(4)
    with pytest.raises(DataError, match="had 3 samples and now has 4: its length must not change"):
        loader.load(0, 1)


# --- what a microbatch holds


def test_samples_are_collated_as_torch_does_it() -> None:
    loader = Loader(Microbatches([{"x": torch.ones(2) * n, "n": n} for n in range(4)], 2, shuffle=False), 1, SEED)
    batch = loader.load(1, 0)
    assert batch["n"].tolist() == [2, 3]
    assert batch["x"].tolist() == [[2.0, 2.0], [3.0, 3.0]]


def test_the_order_is_that_of_the_run() -> None:
    loader = Loader(Microbatches(list(range(10)), size=3, collate_fn=list), 4, SEED)
    for step, index in ((0, 0), (7, 3), (2, 1)):
        assert tuple(loader.load(step, index)) == loader.order.samples(step, index)


def test_augmentation_does_not_depend_on_who_loads_or_what_was_loaded_before() -> None:
    first, second = (Loader(Microbatches(Augmented(20), 3, collate_fn=list), 4, SEED) for _ in range(2))
    there = {(step, index): first.load(step, index) for step in range(3) for index in range(4)}
    torch.manual_seed(99)
    random.seed(99)
    np.random.seed(99)
    for place in reversed(there):
        assert second.load(*place) == there[place]


def test_every_sample_of_a_microbatch_draws_its_own_numbers() -> None:
    """Also the same sample again, in another microbatch."""
    loader = Loader(Microbatches(Augmented(1), size=4, collate_fn=list), 2, SEED)
    drawn = loader.load(0, 0) + loader.load(0, 1) + loader.load(1, 0)
    for source in ("torch", "numpy", "random"):
        assert len({sample[source] for sample in drawn}) == len(drawn)


def test_another_seed_draws_other_numbers() -> None:
    one, other = (Loader(Microbatches(Augmented(4), 2, list, shuffle=False), 2, seed) for seed in (1, 2))
    assert one.load(0, 0) != other.load(0, 0)


# --- workers


def test_workers_load_what_the_training_process_would(loaders: list[Loader]) -> None:
    here = Loader(Microbatches(Augmented(20), 3, collate_fn=list), 4, SEED)
    there = Loader(Microbatches(Augmented(20), 3, collate_fn=list, workers=2, prefetch=2), 4, SEED)
    loaders.append(there)
    places = [(step, index) for step in range(3) for index in range(4)]
    for number, place in enumerate(places):
        assert there.load(*place, places[number + 1 :]) == here.load(*place)
    # Out of turn, as after a loss: what was loaded ahead is dropped, what is new is loaded.
    assert there.load(5, 2, [(5, 3)]) == here.load(5, 2)
    assert there.load(5, 0, [(5, 1)]) == here.load(5, 0)
    pids = {sample["pid"] for sample in there.load(6, 0, [])} | {sample["pid"] for sample in there.load(6, 1, [])}
    assert os.getpid() not in pids


def test_workers_need_not_import_what_the_user_wrote(loaders: list[Loader]) -> None:
    """A data set and a collate_fn of the user's own file have travelled by value, and travel on so."""
    methods = {"__module__": "of_the_user", "__len__": lambda self: 4, "__getitem__": lambda self, item: item * item}
    dataset = type("Squares", (), methods)()
    there = Loader(Microbatches(dataset, 2, collate_fn=lambda items: sum(items), shuffle=False, workers=1), 2, SEED)
    loaders.append(there)
    assert [there.load(0, 0), there.load(0, 1)] == [1, 13]


def test_what_a_worker_raises_is_raised_where_the_batch_is_wanted(loaders: list[Loader]) -> None:
    there = Loader(Microbatches(loading.Broken(6, bad=4), 1, collate_fn=list, shuffle=False, workers=1), 6, SEED)
    loaders.append(there)
    upcoming = [(0, index) for index in range(6)]
    for index in range(4):
        assert there.load(0, index, upcoming[index + 1 :]) == [index]
    with pytest.raises(ValueError, match="sample 4 cannot be read"):
        there.load(0, 4, upcoming[5:])
    assert there.load(0, 5) == [5]


def test_workers_end_with_a_rank_that_is_killed(tmp_path: Path) -> None:
    rank = subprocess.Popen([sys.executable, loading.__file__], stdout=subprocess.PIPE, text=True)
    assert rank.stdout is not None
    try:
        workers = [psutil.Process(int(pid)) for pid in rank.stdout.readline().split()]
        assert len(workers) == 2
        assert all(worker.is_running() for worker in workers)
        others = [child for child in psutil.Process(rank.pid).children(recursive=True) if child not in workers]
        rank.send_signal(signal.SIGKILL)
        deadline = time.monotonic() + 15
        left = [*workers, *others]
        while left and time.monotonic() < deadline:
            left = [worker for worker in left if worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE]
            time.sleep(0.02)
        assert left == []
    finally:
        rank.kill()
        rank.wait()

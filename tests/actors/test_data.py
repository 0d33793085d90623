"""Microbatches: what they hold depends on (seed, step, index) alone, whoever loads them and where."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import psutil
import pytest
import torch
from everstep.actors.rank.data import Loader, Microbatches
from everstep.conf.errors import DataError
from everstep.conf.schedule import BatchSchedule
from torch.nn.utils.rnn import pad_sequence

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


def notes(error: BaseException) -> str:
    return "\n".join(error.__notes__)


# --- what is refused


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


class SizedStream(Stream):
    """Has all that a map-style data set has, by inheritance."""

    def __len__(self) -> int:
        return 10


class Sized:
    def __len__(self) -> int:
        return 3


@pytest.mark.parametrize("dataset", [Stream(), SizedStream(), Sized(), iter([1]), (x for x in [1])])
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
        ({"size": True}, r"Microbatches\(size=True\)"),
        ({"size": 2, "collate_fn": "pad"}, r"Microbatches\(collate_fn='pad'\) must be a function from a list"),
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


def test_the_number_of_microbatches_may_change() -> None:
    loader = Loader(Microbatches(list(range(100)), 2, list, shuffle=False), BatchSchedule.of({0: 1, 2: 3}), SEED)
    assert [loader.load(*place) for place in ((1, 0), (2, 0), (2, 2), (3, 0))] == [[2, 3], [4, 5], [8, 9], [10, 11]]


def test_a_hugging_face_data_set_is_a_data_set() -> None:
    rows = datasets.Dataset.from_dict({"ids": [[n, n + 1] for n in range(10)], "label": list(range(10))})
    loader = Loader(Microbatches(rows.with_format("torch"), size=4), 3, SEED)
    batch = loader.load(1, 2)
    samples = list(loader.order.samples(1, 2))
    assert batch["label"].tolist() == samples
    assert batch["ids"].tolist() == [[n, n + 1] for n in samples]


def test_a_weight_in_tokens_makes_padded_batches_count_every_token_once() -> None:
    """Whatever is padded to what, the weighted mean over a step is the mean over its tokens."""
    texts = [torch.arange(1.0, 2 + n % 5) for n in range(24)]
    loader = Loader(Microbatches(texts, 3, lambda items: pad_sequence(items, batch_first=True), shuffle=True), 8, SEED)
    weight = torch.tensor(2.0, requires_grad=True)
    summed = torch.tensor(0.0)
    tokens = 0
    for index in range(8):
        batch = loader.load(0, index)
        real = batch > 0
        loss = ((weight * batch - 1).square() * real).sum() / real.sum()
        summed += real.sum() * torch.autograd.grad(loss, weight)[0]
        tokens += int(real.sum())
    flat = torch.cat(texts)
    assert tokens == len(flat)
    expected = torch.autograd.grad((weight * flat - 1).square().mean(), weight)[0]
    assert torch.allclose(summed / tokens, expected)


def test_a_rank_that_starts_late_reads_its_own_samples_only(tmp_path: Path) -> None:
    data = loading.Remembered(1000, tmp_path / "log")
    loader = Loader(Microbatches(data, size=4, collate_fn=list), 64, SEED)
    batches = [loader.load(10**6, index) for index in (5, 6, 9)]
    assert data.read() == [sample for batch in batches for sample in batch]
    assert len(data.read()) == 12


def test_an_error_names_the_samples() -> None:
    loader = Loader(Microbatches(loading.Broken(6, {4: lambda: ValueError("bad")}), 2, list, shuffle=False), 3, SEED)
    with pytest.raises(ValueError, match="bad") as raised:
        loader.load(0, 2)
    assert notes(raised.value) == "while loading samples 4, 5 of microbatch 2 of step 0"


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


@pytest.fixture
def one_worker(loaders: list[Loader]) -> Callable[..., Loader]:
    def make(dataset: Any, size: int = 1, collate_fn: Any = list, prefetch: int = 2) -> Loader:
        loaders.append(Loader(Microbatches(dataset, size, collate_fn, False, workers=1, prefetch=prefetch), 8, SEED))
        return loaders[-1]

    return make


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


def test_workers_compute_on_one_thread(one_worker: Callable[..., Loader]) -> None:
    loader = one_worker([0], collate_fn=lambda items: torch.get_num_threads())
    torch.set_num_threads(3)
    assert loader.load(0, 0) == 1


@pytest.mark.parametrize("prefetch", [1, 3])
def test_nothing_is_loaded_twice_while_the_quota_changes(
    tmp_path: Path, one_worker: Callable[..., Loader], prefetch: int
) -> None:
    """Other microbatches come to the front or vanish, steps end; what is still owed stays loaded."""
    data = loading.Remembered(40, tmp_path / "log")
    loader = one_worker(data, prefetch=prefetch)
    owed = [(0, 4), (0, 5), (0, 6), (0, 7), (1, 4), (1, 5), (1, 6)]
    assert loader.load(*owed[0], owed[1:]) == [4]
    # A peer dies: its microbatches come first, and what was loaded ahead is further away than the prefetch reaches.
    owed = [(0, 0), (0, 1), (0, 2), (0, 3), *owed[1:]]
    seen = []
    for number, place in enumerate(owed):
        seen += loader.load(*place, owed[number + 1 :])
    assert seen == [0, 1, 2, 3, 5, 6, 7, 12, 13, 14]
    assert sorted(data.read()) == [0, 1, 2, 3, 4, 5, 6, 7, 12, 13, 14]
    assert os.getpid() not in data.readers()


def test_what_is_no_longer_owed_is_not_loaded(tmp_path: Path, one_worker: Callable[..., Loader]) -> None:
    """Beyond what a worker has in hand already."""
    data = loading.Remembered(80, tmp_path / "log")
    loader = one_worker(data, prefetch=8)
    assert loader.load(0, 0, [(0, index) for index in range(1, 8)]) == [0]
    # The step was decided elsewhere; the next one is another's plan.
    assert loader.load(5, 0, []) == [40]
    assert loader._ahead == {}
    assert set(data.read()) <= {0, 1, 2, 3, 4, 5, 6, 7, 40}
    assert len(data.read()) == len(set(data.read()))


def test_what_was_not_begun_is_cancelled(tmp_path: Path, one_worker: Callable[..., Loader]) -> None:
    (gate := tmp_path / "gate").touch()
    data = loading.Remembered(80, tmp_path / "log")

    def slowly(items: list[int]) -> list[int]:
        # Sample 1 holds the worker until the training thread has moved on.
        while items == [1] and gate.exists():
            time.sleep(0.001)
        return items

    loader = one_worker(data, collate_fn=slowly, prefetch=8)
    assert loader.load(0, 0, [(0, index) for index in range(1, 8)]) == [0]
    threading.Timer(0.1, gate.unlink).start()
    assert loader.load(5, 0, []) == [40]
    # Two more were in the worker's hands; those behind them were not touched.
    assert data.read() in ([0, 1, 40], [0, 1, 2, 40], [0, 1, 2, 3, 40])


def test_workers_need_not_import_what_the_user_wrote(one_worker: Callable[..., Loader]) -> None:
    """Data set, collate_fn and the batch itself belong to the user's own file: all travel by value."""
    of_the_user = {"__module__": "of_the_user"}
    methods = {"__len__": lambda self: 4, "__getitem__": lambda self, item: item * item}
    dataset = type("Squares", (), {**of_the_user, **methods})()
    batch_class = type("Batch", (), {**of_the_user, "__init__": lambda self, items: setattr(self, "items", items)})
    loader = one_worker(dataset, size=2, collate_fn=lambda items: batch_class(torch.tensor(items)))
    first, second = loader.load(0, 0), loader.load(0, 1)
    assert [first.items.tolist(), second.items.tolist()] == [[0, 1], [4, 9]]
    # The very class that the training function knows.
    assert type(first) is type(second) is batch_class


def test_a_hugging_face_data_set_travels_to_workers(one_worker: Callable[..., Loader]) -> None:
    rows = datasets.Dataset.from_dict({"label": list(range(10))}).with_format("torch")
    assert one_worker(rows, size=4, collate_fn=None).load(0, 1)["label"].tolist() == [4, 5, 6, 7]


def test_what_a_worker_raises_is_raised_where_the_batch_is_wanted(one_worker: Callable[..., Loader]) -> None:
    """With its type if that can be, the samples, and the worker's traceback."""
    local = type("LocalError", (Exception,), {"__module__": "of_the_user"})
    unpickled = type("LockedError", (Exception,), {"__reduce__": lambda self: (threading.Lock(),)})
    errors = {
        1: lambda: ValueError("sample 1 cannot be read"),
        2: lambda: DataError("line 2 is torn"),
        3: lambda: loading.TwoPartError("sample 3", "cannot be read"),
        4: lambda: local("of the user"),
        5: lambda: unpickled("a lock"),
    }
    loader = one_worker(loading.Broken(8, errors))
    places = [(0, index) for index in range(8)]
    assert loader.load(0, 0, places[1:]) == [0]
    for index, kind, text in (
        (1, ValueError, "sample 1 cannot be read"),
        (2, DataError, "line 2 is torn"),
        (3, RuntimeError, "TwoPartError: sample 3: cannot be read"),
        (4, local, "of the user"),
        (5, RuntimeError, "LockedError: a lock"),
    ):
        with pytest.raises(kind, match=text) as raised:
            loader.load(0, index, places[index + 1 :])
        assert type(raised.value) is kind
        assert "in __getitem__\n    raise self._errors[item]()" in notes(raised.value)
        assert notes(raised.value).endswith(f"while loading samples {index} of microbatch {index} of step 0")
    assert loader.load(0, 6) == [6]


def test_workers_refuse_what_the_training_process_does(tmp_path: Path, one_worker: Callable[..., Loader]) -> None:
    with pytest.raises(DataError, match="collate_fn returned nothing: it must return the batch"):
        one_worker([1, 2], collate_fn=lambda items: None).load(0, 0)
    (length := tmp_path / "length").write_text("4")
    growing = one_worker(loading.Growing(length))
    assert growing.load(0, 0) == [0]
    length.write_text("5")
    with pytest.raises(DataError, match="had 4 samples and now has 5: its length must not change"):
        growing.load(0, 1)
    with pytest.raises(DataError, match="had 4 samples and now has 5: its length must not change"):
        one_worker(loading.OnlyHere()).load(0, 0)


def test_a_data_set_that_cannot_travel_is_refused(one_worker: Callable[..., Loader]) -> None:
    lock = threading.Lock()
    with pytest.raises(DataError, match=r"list or its collate_fn cannot be sent to workers \(TypeError: .*or use work"):
        one_worker([1, 2], collate_fn=lambda items: lock)
    with pytest.raises(FileNotFoundError, match="no such file on this node") as raised:
        one_worker(loading.Unmade()).load(0, 3)
    assert "loading.py" in notes(raised.value)


def test_a_worker_that_is_killed_is_replaced(tmp_path: Path, one_worker: Callable[..., Loader]) -> None:
    data = loading.Remembered(8, tmp_path / "log", kills=2, lives=1)
    loader = one_worker(data)
    places = [(0, index) for index in range(6)]
    assert [loader.load(*place, places[place[1] + 1 :]) for place in places] == [[n] for n in range(6)]
    assert data.read().count(2) == 2
    assert len(data.readers()) == 2


def test_a_sample_that_kills_every_worker_is_an_error(tmp_path: Path, one_worker: Callable[..., Loader]) -> None:
    data = loading.Remembered(8, tmp_path / "log", kills=0, lives=9)
    loader = one_worker(data)
    with pytest.raises(ChildProcessError, match="killed twice: is there enough memory") as raised:
        loader.load(0, 0)
    assert notes(raised.value) == "while loading samples 0 of microbatch 0 of step 0"
    assert data.read() == [0, 0]
    assert loader.load(0, 1) == [1]


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

"""The user's data set, read microbatch by microbatch in our order."""

import multiprocessing
import os
import pickle
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any

from ...conf.errors import DataError
from .order import SampleOrder, mix
from .rng import seed_everything

Collate = Callable[[list[Any]], Any]


class Microbatches:
    """A map-style data set, cut into microbatches whose content depends on (seed, step, index) alone.

    Args:
        dataset: anything with ``__len__`` and ``__getitem__``.
        size: samples in a microbatch.
        collate_fn: from a list of samples to a batch; by default torch's own.
        shuffle: a new order every epoch; False keeps the order of the data set.
        workers: processes that load ahead; 0 loads in the training process.
        prefetch: microbatches that are loaded ahead per worker.

    Raises:
        DataError: an iterable or an empty data set, or a size that is not positive.
    """

    def __init__(
        self,
        dataset: Any,
        size: int,
        collate_fn: Collate | None = None,
        shuffle: bool = True,
        workers: int = 0,
        prefetch: int = 2,
    ) -> None:
        if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
            raise DataError(
                f"{type(dataset).__name__} is not a map-style data set (it needs __len__ and __getitem__): an "
                "iterable one has no order that can be resumed or given to another rank"
            )
        if len(dataset) == 0:
            raise DataError("the data set is empty")
        for name, value, low in (("size", size, 1), ("workers", workers, 0), ("prefetch", prefetch, 1)):
            if not isinstance(value, int) or value < low:
                raise DataError(f"Microbatches({name}={value!r}) must be a whole number of at least {low}")
        self.dataset = dataset
        self.size = size
        self.collate_fn = collate_fn
        self.shuffle = shuffle
        self.workers = workers
        self.prefetch = prefetch


class Loader:
    """Loads the microbatches that a rank owes, ahead of time if there are workers.

    Args:
        data: what the user gave.
        microbatches: B.
        seed: of the run.
    """

    def __init__(self, data: Microbatches, microbatches: int, seed: int) -> None:
        self._data = data
        self._seed = seed
        self.order = SampleOrder(len(data.dataset), data.size, microbatches, seed, data.shuffle)
        self._collate = data.collate_fn or _default_collate()
        self._pool: ProcessPoolExecutor | None = None
        self._ahead: dict[tuple[int, int], Future[Any]] = {}
        if data.workers:
            from ray import cloudpickle

            # By value: what is defined in the user's own file cannot be imported by a worker.
            work = cloudpickle.dumps((data.dataset, self._collate))
            self._pool = ProcessPoolExecutor(
                data.workers,
                mp_context=multiprocessing.get_context("spawn"),
                initializer=_start_worker,
                initargs=(os.getpid(), work),
            )

    def load(self, step: int, index: int, upcoming: Sequence[tuple[int, int]] = ()) -> Any:
        """The batch of microbatch (step, index).

        Args:
            upcoming: (step, index) that are owed next, in order, as candidates to load ahead.

        Raises:
            DataError: the data set changed its length.
        """
        if len(self._data.dataset) != self.order.length:
            raise DataError(
                f"the data set had {self.order.length} samples and now has {len(self._data.dataset)}: "
                "its length must not change during a run"
            )
        if self._pool is None:
            return _load(self._data.dataset, self._collate, self.order.samples(step, index), self._seeds(step, index))
        wanted = [(step, index), *upcoming][: 1 + self._data.workers * self._data.prefetch]
        for stale in self._ahead.keys() - set(wanted):
            self._ahead.pop(stale).cancel()
        for key in wanted:
            if key not in self._ahead:
                self._ahead[key] = self._pool.submit(_work, self.order.samples(*key), self._seeds(*key))
        return self._ahead.pop((step, index)).result()

    def close(self) -> None:
        """End the workers."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _seeds(self, step: int, index: int) -> int:
        return mix(self._seed, step, index, 1)


_worker: tuple[Any, Collate] | None = None


def _start_worker(parent: int, work: bytes) -> None:
    global _worker
    _worker = pickle.loads(work)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    """A worker must not outlive a rank that was killed: nobody else would end it."""
    process = multiprocessing.parent_process()
    if process is not None and process.pid == parent:
        process.join()
    os._exit(0)


def _work(samples: tuple[int, ...], seed: int) -> Any:
    assert _worker is not None
    return _load(*_worker, samples, seed)


def _load(dataset: Any, collate: Collate, samples: tuple[int, ...], seed: int) -> Any:
    items = []
    for place, sample in enumerate(samples):
        # Augmentation draws from a stream of its own, so it does not depend on who loads the sample.
        seed_everything(mix(seed, place))
        items.append(dataset[sample])
    batch = collate(items)
    if batch is None:
        raise DataError("collate_fn returned nothing: it must return the batch")
    return batch


def _default_collate() -> Collate:
    from torch.utils.data import default_collate

    return default_collate

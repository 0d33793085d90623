"""Turning sample ids into a batch, here or in worker processes that load ahead of the training thread."""

import multiprocessing
import os
import pickle
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from ray import cloudpickle

from ...conf.errors import DataError
from .order import mix
from .rng import seed_everything

Collate = Callable[[list[Any]], Any]


@dataclass(frozen=True)
class Source:
    """What makes a batch of sample ids; travels to workers whole.

    Attributes:
        length: that the data set had when the run's order was made.
    """

    dataset: Any
    collate: Collate
    length: int

    def load(self, samples: tuple[int, ...], seed: int) -> Any:
        """The batch of these samples; seeds torch, numpy and random anew for each of them.

        Raises:
            DataError: the data set changed its length, or collate returned nothing.
        """
        self.refuse_change()
        items = []
        for place, sample in enumerate(samples):
            # Augmentation draws from a stream of its own, so it does not depend on who loads the sample.
            seed_everything(mix(seed, place))
            items.append(self.dataset[sample])
        batch = self.collate(items)
        if batch is None:
            raise DataError("collate_fn returned nothing: it must return the batch")
        return batch

    def refuse_change(self) -> None:
        """Refuse a data set that has become another one."""
        if len(self.dataset) != self.length:
            raise DataError(
                f"the data set had {self.length} samples and now has {len(self.dataset)}: "
                "its length must not change during a run"
            )


class Workers:
    """Worker processes, each with a copy of the source.

    What a data set holds in memory is therefore held once per worker, and once more here as bytes, from which a lost
    worker is replaced; what it maps from files is not. Workers end with this process, however it ends.

    Args:
        source: travels by value, so what is defined in the user's own file need not be importable.
        count: at least 1.

    Raises:
        DataError: something in the source cannot be sent to another process.
    """

    def __init__(self, source: Source, count: int) -> None:
        self._count = count
        try:
            self._work = cloudpickle.dumps(source)
        except Exception as error:
            raise DataError(
                f"{type(source.dataset).__name__} or its collate_fn cannot be sent to workers "
                f"({type(error).__name__}: {error}): open files and connections on first use, or use workers=0"
            ) from error
        self._pool = self._start()

    def submit(self, samples: tuple[int, ...], seed: int) -> Future["Loaded"]:
        """Have a batch loaded.

        Raises:
            BrokenProcessPool: a worker has died; so do the futures that were not done.
        """
        return self._pool.submit(_load, samples, seed)

    def restart(self) -> None:
        """Replace all workers, after one of them has died."""
        self.close()
        self._pool = self._start()

    def close(self) -> None:
        """End the workers."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _start(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(
            self._count,
            mp_context=_context(),
            initializer=_start_worker,
            initargs=(os.getpid(), self._work),
        )


def _context() -> Any:
    """Workers are forked from a process that has done nothing but import: torch is loaded once for all of them."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


@dataclass(frozen=True)
class Loaded:
    """A batch, or why there is none, as it leaves a worker.

    Attributes:
        content: the batch or the exception, pickled; None for an exception that cannot be.
        failure: None, or the one line and the traceback of the exception.
    """

    content: bytes | None
    failure: tuple[str, str] | None = None

    def batch(self) -> Any:
        """The batch; raises what loading it has raised, with the worker's traceback as a note."""
        if self.failure is None:
            assert self.content is not None
            return pickle.loads(self.content)
        line, trace = self.failure
        error = _revived(self.content) or RuntimeError(line)
        error.add_note(f"raised in a worker:\n{trace.rstrip()}")
        raise error


_source: Source | Loaded | None = None


def _start_worker(parent: int, work: bytes) -> None:
    global _source
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    # Workers must not take the cores that compute.
    torch.set_num_threads(1)
    try:
        _source = pickle.loads(work)
    except Exception as error:
        # An initializer that raises breaks the pool without a word.
        _source = _failed(error)


def _end_with(parent: int) -> None:
    """A worker must not outlive a rank that was killed: nobody else would end it."""
    process = multiprocessing.parent_process()
    if process is not None and process.pid == parent:
        process.join()
    os._exit(0)


def _load(samples: tuple[int, ...], seed: int) -> Loaded:
    if isinstance(_source, Loaded):
        return _source
    assert _source is not None
    try:
        return Loaded(_pickled(_source.load(samples, seed)))
    except Exception as error:
        return _failed(error)


def _failed(error: Exception) -> Loaded:
    failure = f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error))
    try:
        return Loaded(_pickled(error), failure)
    except Exception:
        return Loaded(None, failure)


def _pickled(value: Any) -> bytes:
    """By name where that works, else by value: a worker cannot import what lives in the user's own file."""
    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except Exception:
        return bytes(cloudpickle.dumps(value))


def _revived(content: bytes | None) -> Exception | None:
    """The exception; None if it is of a kind that cannot be made again, as some of users' are."""
    if content is None:
        return None
    try:
        error = pickle.loads(content)
    except Exception:
        return None
    return error if isinstance(error, Exception) else None

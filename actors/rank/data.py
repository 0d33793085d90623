"""The user's data set, read microbatch by microbatch in an order that nothing disturbs."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Protocol

from torch.utils.data import IterableDataset, default_collate

from ...conf.errors import DataError
from ...conf.schedule import BatchSchedule
from .order import Epochs, Ordered, SampleOrder, mix
from .rng import streams_kept
from .signature import value_sha256
from .workers import Collate, Loaded, Source, Workers

# Steps whose first microbatch stands for the data set.
_SAMPLED = (0, 997)


class Microbatches:
    """A map-style data set, cut into microbatches whose content depends on (seed, step, index) alone.

    Args:
        dataset: anything with ``__len__`` and ``__getitem__``: a torch data set, a Hugging Face ``Dataset``,
            ``everstep.Tokens``, ``everstep.Mixture``, a list. One with a method ``sample_order`` (see ``Ordered``)
            brings its own order. The others are shuffled anew every epoch; a tail is filled from the next epoch.
        size: samples in a microbatch.
        collate_fn: from a list of samples to a batch; by default torch's own.
        shuffle: a new order every epoch; False keeps the order of the data set.
        workers: processes that load ahead; 0 loads in the training process. Each holds a copy of what the data set
            holds in memory; a data set that maps its files is not copied.
        prefetch: microbatches that are loaded ahead per worker.

    Raises:
        DataError: an iterable or an empty data set, a ``collate_fn`` that is no function, or a number that is no whole
            number or too small.
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
        refuse_unordered(dataset)
        if collate_fn is not None and not callable(collate_fn):
            raise DataError(f"Microbatches(collate_fn={collate_fn!r}) must be a function from a list of samples")
        for name, value, low in (("size", size, 1), ("workers", workers, 0), ("prefetch", prefetch, 1)):
            if not isinstance(value, int) or isinstance(value, bool) or value < low:
                raise DataError(f"Microbatches({name}={value!r}) must be a whole number of at least {low}")
        self.dataset = dataset
        self.size = size
        self.collate_fn = collate_fn
        self.shuffle = shuffle
        self.workers = workers
        self.prefetch = prefetch


def refuse_unordered(dataset: Any) -> None:
    """Refuse what is no map-style data set with at least one sample.

    Raises:
        DataError: in one line.
    """
    # torch's iterable data sets inherit a __getitem__, and some have a __len__.
    mapped = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    if not mapped or isinstance(dataset, IterableDataset):
        raise DataError(
            f"{type(dataset).__name__} is not a map-style data set (it needs __len__ and __getitem__): an "
            "iterable one has no order that can be resumed or given to another rank"
        )
    if len(dataset) == 0:
        raise DataError("the data set is empty")


def order_of(dataset: Any, seed: int, shuffle: bool) -> Callable[[int], int]:
    """From positions to samples: the data set's own order if it brings one, else ``Epochs``."""
    if isinstance(dataset, Ordered):
        return dataset.sample_order(seed, shuffle)
    return Epochs(len(dataset), seed, shuffle)


class Order(Protocol):
    """Which samples a microbatch holds: a pure function of its place."""

    length: int

    def samples(self, step: int, index: int) -> tuple[int, ...]:
        """Sample ids of microbatch (step, index)."""
        ...


class Loader:
    """Loads the microbatches that a rank owes, ahead of time if there are workers.

    Args:
        data: what the user gave.
        microbatches: B, or its schedule.
        seed: of the run.
        order: of the samples, instead of the run's own.
        passes_over: microbatches whose samples are passed over before a step.

    Raises:
        DataError: the data set or ``collate_fn`` cannot be sent to workers.
    """

    def __init__(
        self,
        data: Microbatches,
        microbatches: int | BatchSchedule,
        seed: int,
        order: Order | None = None,
        passes_over: Callable[[int], int] = lambda step: 0,
    ) -> None:
        self._seed = seed
        length = len(data.dataset)
        if order is None:
            at = order_of(data.dataset, seed, data.shuffle)
            order = SampleOrder(length, data.size, microbatches, seed, data.shuffle, at, passes_over)
        self.order: Order = order
        self._source = Source(data.dataset, data.collate_fn or default_collate, length)
        self._workers = Workers(self._source, data.workers) if data.workers else None
        self._depth = data.workers * data.prefetch
        self._ahead: dict[tuple[int, int], Future[Loaded]] = {}

    @property
    def ahead(self) -> bool:
        """Whether batches are loaded ahead of time."""
        return self._workers is not None

    def load(self, step: int, index: int, upcoming: Sequence[tuple[int, int]] = ()) -> Any:
        """The batch of microbatch (step, index). What was loaded ahead and is neither it nor upcoming is dropped.

        Args:
            upcoming: (step, index) of all that is owed next, in order, also of the steps to come: candidates to load
                ahead.

        Raises:
            DataError: the data set changed its length, or ``collate_fn`` returned nothing.
            ChildProcessError: a worker died, and another one at the same microbatch.
            Exception: whatever the data set or ``collate_fn`` raises. A note names the samples.
        """
        try:
            self._source.refuse_change()
            if self._workers is None:
                return self._source.load(*self._work(step, index))
            return self._take(self._workers, (step, index), upcoming)
        except Exception as error:
            samples = ", ".join(map(str, self.order.samples(step, index)))
            error.add_note(f"while loading samples {samples} of microbatch {index} of step {step}")
            raise

    def sample_sha256(self) -> str:
        """Of two microbatches that stand for all: another data set, or another order of it, has other ones."""
        with streams_kept():
            try:
                return value_sha256([self._source.load(*self._work(step, 0)) for step in _SAMPLED])
            except Exception as error:
                # Whoever comes to that microbatch hears of it.
                return f"{type(error).__name__} in a sample"

    def close(self) -> None:
        """End the workers."""
        if self._workers is not None:
            self._workers.close()

    def _take(self, workers: Workers, current: tuple[int, int], upcoming: Sequence[tuple[int, int]]) -> Any:
        owed = (current, *upcoming)
        for stale in self._ahead.keys() - set(owed):
            self._ahead.pop(stale).cancel()
        for _ in range(2):
            try:
                for place in owed[: 1 + self._depth]:
                    if place not in self._ahead:
                        self._ahead[place] = workers.submit(*self._work(*place))
                # Ended by the batch, or by the end of a worker.
                loaded = self._ahead.pop(current).result()
            except BrokenProcessPool:
                # What a worker did can be done again: batches are pure functions of their place.
                self._ahead.clear()
                workers.restart()
            else:
                return loaded.batch()
        raise ChildProcessError("workers that load data were killed twice: is there enough memory for all of them?")

    def _work(self, step: int, index: int) -> tuple[tuple[int, ...], int]:
        """Sample ids and the root of the random streams."""
        return self.order.samples(step, index), mix(self._seed, step, index, 1)

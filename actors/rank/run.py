"""All steps of a training run as a user sees them: ``for step in run``."""

import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import torch
from torch import nn

from ...conf.errors import LoopError
from ...monitors.progress import Activity
from .data import Loader, Microbatches
from .evaluation import Evaluate, Evaluation, InOrder, numbers_of
from .ledger import Ledger
from .loop import Machinery, Step
from .order import mix
from .rng import seed_everything, streams_kept

# Results of evaluations, in order.
Evaluations = tuple[Mapping[str, float], ...]
# Keeps the random streams of evaluations apart from those of steps.
_EVALUATION = 2


class Run:
    """All steps of a training run, each committed exactly once.

    Args:
        probe: whether step 0 begins with a microbatch that all members compute alike.
        first: the step with which this rank begins.
        evaluations: what was evaluated before step 0, if this rank begins later: it is told the results again.
        on_begin: called before the first step is handed out.

    Attributes:
        steps: optimizer steps in all, if nobody stops the run before.
    """

    def __init__(
        self,
        ledger: Ledger,
        machinery: Machinery,
        models: Mapping[str, nn.Module],
        device: torch.device,
        steps: int,
        probe: bool,
        on_applied: Callable[[Step], None],
        on_stage: Callable[[str], None] = lambda stage: None,
        first: int = 0,
        evaluations: Evaluations = (),
        on_begin: Callable[[], None] = lambda: None,
    ) -> None:
        self._ledger = ledger
        self._machinery = machinery
        self._models = models
        self._device = device
        self._on_applied = on_applied
        self._on_stage = on_stage
        self._on_begin = on_begin
        self._loaders: WeakKeyDictionary[Microbatches, Loader] = WeakKeyDictionary()
        self._stop = False
        self._stopped = False
        self._inside = False
        self._probe = probe
        self.steps = steps
        self.current: Step | None = None
        self.applied = first - 1
        # Results of the evaluations before the first step: made here, or still to be told to the user's function.
        self.before: Evaluations = evaluations
        self._told = iter(evaluations)

    @property
    def is_leader(self) -> bool:
        """Whether this rank holds the lowest seat now: the one to write files or to log."""
        transaction = self._ledger.transaction
        return transaction.world is not None and transaction.world.incarnations[0] == transaction.incarnation

    @property
    def finished(self) -> bool:
        """Whether all steps are applied here, or the run was stopped and its last one is."""
        return self._stopped or self.applied == self.steps - 1

    def stop(self) -> None:
        """End the run early, on all ranks after the same step: the one whose batches are computed now, else the next.

        It is enough that one rank calls it. When every rank calls it between two steps, the next step is the last.
        """
        self._stop = True
        if self.current is not None:
            self.current.stop()

    def __iter__(self) -> Iterator[Step]:
        if self._inside:
            raise LoopError("`for step in run` was begun twice: one run has one step loop")
        self._inside = True
        self._on_begin()
        while not self.finished:
            number = self.applied + 1
            probe, last = self._probe and number == 0, number == self.steps - 1
            step = Step(number, self._machinery, self._stop, probe, last)
            self.current = step
            yield step
            if not step.committed:
                raise LoopError(f"step {number} was left before its batches were consumed: iterate `for batch in step`")
            self.applied = number
            self._stopped = step.last
            self._on_applied(step)
        # Those of evaluations stay: one may follow the last step. Workers end with this process at the latest.
        self._machinery.loader.close()

    def evaluate(self, data: Microbatches, eval_fn: Evaluate) -> dict[str, float]:
        """Compute numbers over a whole data set, split over the world; every rank must call it, and gets the same.

        It survives failures like a step: what a lost rank has not finished is computed by the others. Models are in
        evaluation mode meanwhile, no gradient is recorded, and what is drawn does not show in the training.

        Args:
            data: each of its samples is seen once, in the order of the data set; the last microbatch may be shorter.
            eval_fn: from a batch to numbers by name, each a value or (value, weight).

        Returns:
            Weighted means by name; the same bits on every rank, for any size of the world.

        Raises:
            LoopError: in the middle of a step's batches, or numbers that are none.
        """
        if self.current is not None and not self.current.committed:
            raise LoopError("run.evaluate was called before the step's batches were consumed: call it between steps")
        if not isinstance(data, Microbatches):
            raise LoopError(f"run.evaluate needs everstep.Microbatches, got {type(data).__name__}")
        if not self._inside and (told := next(self._told, None)) is not None:
            # The others are long past it.
            return dict(told)
        engine, seed = self._machinery.engine, self._machinery.seed
        loader = self._loader(data)
        evaluation = Evaluation(InOrder(len(data.dataset), data.size).microbatches, self._device)
        self._on_stage("evaluation")
        with self._evaluating():
            engine.begin(evaluation)
            step, unit = engine.position.step, engine.position.unit
            evaluation.place = f"the evaluation at step {engine.position}"
            settled = None
            while settled is None:
                while (index := engine.next_index()) is not None:
                    engine.board.doing(Activity.LOADING, index)
                    batch = loader.load(0, index, tuple((0, other) for _, other in engine.upcoming(index)))
                    engine.board.doing(Activity.COMPUTING, index)
                    started = time.monotonic()
                    seed_everything(mix(seed, step, unit, index, _EVALUATION))
                    evaluation.add(index, numbers_of(eval_fn(batch)))
                    engine.done(index, started)
                settled = engine.settle()
        self._on_stage("training")
        numbers = settled[1].numbers
        if not self._inside:
            self.before = (*self.before, numbers)
        return dict(numbers)

    def close(self) -> None:
        """End all workers: the run goes on with another object."""
        for loader in (self._machinery.loader, *self._loaders.values()):
            loader.close()

    def _loader(self, data: Microbatches) -> Loader:
        """The same for each evaluation of the same data, so that workers are started once; it ends with the data."""
        loader = self._loaders.get(data)
        if loader is None:
            order = InOrder(len(data.dataset), data.size)
            loader = self._loaders[data] = Loader(data, 1, mix(self._machinery.seed, _EVALUATION), order)
            weakref.finalize(data, loader.close)
        return loader

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        modes = [(module, module.training) for model in self._models.values() for module in model.modules()]
        for model in self._models.values():
            model.eval()
        try:
            with streams_kept(), torch.no_grad():
                yield
        finally:
            for module, mode in modes:
                module.training = mode

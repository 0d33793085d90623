"""The two loops that a user writes: ``for step in run`` and ``for batch in step``."""

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, as_tensor

from ...conf.chaos import FaultPoint
from ...conf.errors import LoopError
from ...policies.world import Position
from ..faults import Chaos
from .census import Census
from .data import Loader
from .engine import Engine
from .gradients import GradientSum
from .ledger import Ledger
from .order import mix
from .rng import seed_everything
from .transaction import Verdict


class Step:
    """One optimizer step. Iterate over its batches, call ``backward`` once for each, then apply the gradient.

    Attributes:
        number: of the step, from 0.
        loss: weighted mean over all microbatches of the step; known once the batches are consumed.
        weight: sum of all weights of the step; likewise.
    """

    def __init__(self, number: int, engine: Engine, loader: Loader, gradients: GradientSum, chaos: Chaos, seed: int):
        self.number = number
        self._engine = engine
        self._loader = loader
        self._gradients = gradients
        self._chaos = chaos
        self._seed = seed
        self._index: int | None = None
        # What became of the microbatch under way.
        self._begun = self._folded = False
        self._started = 0.0
        self._census: Census | None = None

    @property
    def loss(self) -> float:
        return self._decided("loss").loss

    @property
    def weight(self) -> float:
        return self._decided("weight").weight

    @property
    def committed(self) -> bool:
        """Whether the gradient of the whole step stands in ``.grad``."""
        return self._census is not None

    @property
    def microbatch(self) -> tuple[int, tuple[int, ...]] | None:
        """Index and sample ids of the microbatch under way, for error messages."""
        if self._index is None:
            return None
        return self._index, self._loader.order.samples(self.number, self._index)

    def __iter__(self) -> Iterator[Any]:
        engine = self._engine
        engine.begin(Position(self.number, 0))
        while True:
            while (index := engine.next_index()) is not None:
                yield from self._compute(index)
            settled = engine.settle()
            if settled is None:
                continue
            verdict, census = settled
            if verdict is Verdict.COMMIT:
                break
            engine.begin(Position(self.number, engine.position.attempt + 1))
        self._census = census
        # What the user draws between two steps must not depend on who computed what.
        seed_everything(mix(self._seed, self.number))

    def backward(self, loss: Tensor, weight: float = 1) -> None:
        """Run the backward of this microbatch and take its gradient.

        Args:
            loss: mean loss of the microbatch, a scalar.
            weight: of this loss in the mean over the step, e.g. its number of tokens; 0 contributes nothing.

        Raises:
            LoopError: outside of a microbatch, a second time in one, a loss that is no scalar or has no graph,
                or a weight that is negative or not finite.
        """
        if self._index is None:
            raise LoopError("step.backward was called outside of a microbatch: call it inside `for batch in step`")
        if self._begun:
            raise LoopError(f"step.backward was called twice for microbatch {self._index} of step {self.number}")
        if not (isinstance(weight, int | float) and math.isfinite(weight) and weight >= 0):
            raise LoopError(f"weight={weight!r} must be a finite number that is not negative")
        if loss.numel() != 1:
            raise LoopError(f"the loss has shape {tuple(loss.shape)}: step.backward needs a scalar")
        self._gradients.refuse_gradients()
        self._begun = True
        if weight:
            if not loss.requires_grad:
                raise LoopError("the loss has no graph: was it computed under no_grad, or detached?")
            # Scaling the seed of the backward weighs every gradient without another pass over them.
            seed = as_tensor(weight, dtype=loss.dtype)
            with self._engine.backward(self._index):
                loss.backward(None if weight == 1 else seed.to(loss.device).view_as(loss))
            # The gradient was weighed with what the loss's precision made of the weight.
            weight = seed.item()
        self._engine.fold(self._index, float(weight), loss, self._started)
        self._folded = True

    def _compute(self, index: int) -> Iterator[Any]:
        upcoming = self._engine.upcoming(index)
        batch = self._loader.load(self.number, index, upcoming)
        self._index, self._started = index, time.monotonic()
        self._begun = self._folded = False
        seed_everything(mix(self._seed, self.number, index))
        self._chaos.at(FaultPoint.BEFORE_FORWARD)
        yield batch
        self._gradients.refuse_gradients()
        if self._begun and not self._folded:
            raise LoopError(
                f"the backward of microbatch {index} of step {self.number} failed and its exception was caught: "
                "a part of its gradient is summed, so let the exception out"
            )
        if not self._folded:
            raise LoopError(
                f"microbatch {index} of step {self.number} ended without step.backward(loss): every microbatch "
                "counts, call it exactly once (weight=0 contributes nothing)"
            )
        self._index = None

    def _decided(self, what: str) -> Census:
        if self._census is None:
            raise LoopError(f"step.{what} is known only after all batches of step {self.number} are consumed")
        return self._census


class Run:
    """All steps of a training run, each committed exactly once.

    Attributes:
        steps: optimizer steps in all.
    """

    def __init__(
        self,
        ledger: Ledger,
        engine: Engine,
        loader: Loader,
        gradients: GradientSum,
        chaos: Chaos,
        seed: int,
        steps: int,
        on_applied: Callable[[Step], None],
    ) -> None:
        self._ledger = ledger
        self._engine = engine
        self._loader = loader
        self._gradients = gradients
        self._chaos = chaos
        self._seed = seed
        self._on_applied = on_applied
        self.steps = steps
        self.current: Step | None = None
        self.applied = -1

    @property
    def is_leader(self) -> bool:
        """Whether this rank holds the lowest seat now: the one to write files or to log."""
        transaction = self._ledger.transaction
        return transaction.world is not None and transaction.world.incarnations[0] == transaction.incarnation

    @property
    def finished(self) -> bool:
        """Whether all steps are applied here."""
        return self.applied == self.steps - 1

    def __iter__(self) -> Iterator[Step]:
        while not self.finished:
            number = self.applied + 1
            step = Step(number, self._engine, self._loader, self._gradients, self._chaos, self._seed)
            self.current = step
            yield step
            if not step.committed:
                raise LoopError(f"step {number} was left before its batches were consumed: iterate `for batch in step`")
            self.applied = number
            self._on_applied(step)
        self._loader.close()

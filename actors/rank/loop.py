"""One optimizer step as a user sees it: ``for batch in step``."""

import math
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, as_tensor

from ...conf.chaos import FaultPoint
from ...conf.errors import LoopError
from ...monitors.progress import Activity
from ...monitors.reading import Reading
from ..faults import Chaos
from .audits import Audits
from .buffers import Buffers
from .census import Census, Wish
from .data import Loader
from .engine import Engine
from .gradients import GradientSum
from .order import mix
from .rng import seed_everything
from .signing import Signer
from .tally import checked, checked_weight
from .training import Training
from .transaction import Verdict

_UNSIGNED = 2**64 - 1


@dataclass(frozen=True)
class Machinery:
    """What steps are made with; the same for all steps of a run.

    Attributes:
        training: from the number of a step to its unit of work.
        audits: of this rank.
        before_change: called when a step is decided, before anything of the state is changed by it.
    """

    engine: Engine
    loader: Loader
    gradients: GradientSum
    buffers: Buffers
    chaos: Chaos
    seed: int
    training: Callable[[int], Training]
    audits: Audits
    before_change: Callable[[], None] = lambda: None


@dataclass
class Microbatch:
    """The microbatch under way.

    Attributes:
        aside: it is computed to be compared, and summed by others, or by nobody.
        signer: sees its gradient, if that is compared.
        signature: what came of that; None if nothing.
        loading: seconds that its batch was waited for.
        loss: what the user's own backward was computed from, for ``step.loss``; see ``Step.microbatch``.
    """

    index: int
    started: float
    loading: float = 0.0
    aside: bool = False
    signer: Signer | None = None
    signature: int | None = None
    begun: bool = False
    folded: bool = False
    loss: Tensor | None = None
    numbers: dict[str, tuple[float | Tensor, float]] = field(default_factory=dict)


class Step:
    """One optimizer step. Iterate over its batches, call ``backward`` once for each, then apply the gradient.

    Attributes:
        number: of the step, from 0.
        loss: weighted mean over all microbatches of the step; known once the batches are consumed.
        weight: sum of all weights of the step; likewise.
        numbers: weighted means of what was recorded, by name; likewise.
        skipped: why the step has no gradient and must not change the weights; None if it has one. Likewise.
    """

    def __init__(
        self, number: int, machinery: Machinery, stop: bool = False, probe: bool = False, last: bool = False
    ) -> None:
        self.number = number
        self._probes = probe
        self._machinery = machinery
        self._training = machinery.training(number)
        self._training.stop = stop
        # Only whoever loads ahead wants to know what comes in the next step.
        self._following = machinery.training(number + 1).work if machinery.loader.ahead and not last else None
        self._open: Microbatch | None = None
        self._census: Census | None = None
        self._skipped: str | None = None

    @property
    def contributed(self) -> float:
        """The largest |gradient| that this rank has added; 0 if it added none."""
        return self._training.norm

    @property
    def loss(self) -> float:
        census = self._decided("loss")
        return census.loss if self._skipped is None else math.nan

    @property
    def weight(self) -> float:
        return self._decided("weight").weight

    @property
    def numbers(self) -> dict[str, float]:
        return dict(self._decided("numbers").numbers)

    @property
    def readings(self) -> tuple[Reading, ...]:
        """What the stability monitors of all ranks have told with this step."""
        return self._decided("readings").readings

    @property
    def skipped(self) -> str | None:
        self._decided("skipped")
        return self._skipped

    @property
    def committed(self) -> bool:
        """Whether the step is decided: its gradient stands in ``.grad``, or it is skipped."""
        return self._census is not None

    @property
    def microbatches(self) -> int:
        """How many were summed."""
        return self._decided("microbatches").microbatches

    @property
    def last(self) -> bool:
        """Whether a rank asked that no step follows."""
        return self._decided("last").stop

    @property
    def wishes(self) -> tuple[Wish, ...]:
        """By where states are saved, what all ranks together say of the state after this step."""
        return self._decided("wishes").wishes

    @property
    def microbatch_under_way(self) -> tuple[int, tuple[int, ...]] | None:
        """Index and sample ids of the microbatch under way, for error messages."""
        if self._open is None:
            return None
        return self._open.index, self._machinery.loader.order.samples(self.number, self._open.index)

    def stop(self) -> None:
        """Ask that this step is the last one; it counts if the batches are not yet consumed."""
        self._training.stop = True

    def __iter__(self) -> Iterator[Any]:
        engine, training = self._machinery.engine, self._training
        while self._census is None:
            self._machinery.buffers.begin()
            engine.begin(training)
            training.probed = self._probes and engine.position.attempt == 0
            duty = self._machinery.audits.duty(engine.position, training.work)
            if training.probed and engine.members > 1:
                signature = yield from self._aside(0)
                training.signature = None if signature is None else signature & _UNSIGNED
            elif duty is not None and not duty.owns:
                self._machinery.audits.bring(duty, (yield from self._aside(duty.audit.index)))
            settled = None
            while settled is None:
                while (index := engine.next_index()) is not None:
                    upcoming = engine.upcoming(index, self._following)
                    audited = duty is not None and duty.owns and index == duty.audit.index
                    open_ = Microbatch(index, time.monotonic(), signer=Signer(folds=True) if audited else None)
                    yield from self._compute(open_, upcoming)
                    if audited and duty is not None:
                        self._machinery.audits.bring(duty, open_.signature)
                settled = engine.settle()
            verdict, census = settled
            if verdict is Verdict.VOID:
                continue
            engine.board.doing(Activity.SAVING)
            self._machinery.before_change()
            engine.board.doing(Activity.OUTSIDE)
            if verdict is Verdict.SKIP:
                self._skipped = training.skipped(census)
            else:
                self._machinery.buffers.publish()
            self._census = census
        # What the user draws between two steps must not depend on who computed what.
        seed_everything(mix(self._machinery.seed, self.number))

    def backward(self, loss: Tensor, weight: float = 1) -> None:
        """Run the backward of this microbatch and take its gradient.

        Args:
            loss: mean loss of the microbatch, a scalar.
            weight: of this loss in the mean over the step, e.g. its number of tokens; 0 contributes nothing.

        Raises:
            LoopError: outside of a microbatch, a second time in one, a loss that is no scalar or has no graph,
                or a weight that is negative or not finite.
        """
        open_ = self._begin("step.backward")
        weight = checked_weight(weight, "the loss")
        if loss.numel() != 1:
            raise LoopError(f"the loss has shape {tuple(loss.shape)}: step.backward needs a scalar")
        gradients, engine = self._machinery.gradients, self._machinery.engine
        open_.begun = True
        if weight:
            if not loss.requires_grad:
                raise LoopError("the loss has no graph: was it computed under no_grad, or detached?")
            # Scaling the seed of the backward weighs every gradient without another pass over them.
            seed = as_tensor(weight, dtype=loss.dtype)
            start = None if weight == 1 else seed.to(loss.device).view_as(loss)
            last, silent = (None, False) if open_.aside else engine.last_group(open_.index)
            with gradients.backward(last, self._machinery.chaos, silent):
                loss.backward(start)
            # The gradient was weighed with what the loss's precision made of the weight.
            weight = seed.item()
        self._fold(open_, weight, loss)

    @contextmanager
    def microbatch(self, weight: float = 1) -> Iterator[Microbatch]:
        """For loops that run their own backward, once or in parts: what it leaves in ``.grad`` is this microbatch's.

        Args:
            weight: of this microbatch in the mean over the step; the gradient must not be scaled with it already.

        Yields:
            The microbatch; set its ``loss`` to have it in ``step.loss``.

        Raises:
            LoopError: as in ``backward``.
        """
        open_ = self._begin("step.microbatch")
        weight = checked_weight(weight, "the microbatch")
        open_.begun = True
        self._machinery.gradients.detach()
        yield open_
        if not weight:
            self._machinery.gradients.drop()
        self._fold(open_, weight, open_.loss, unweighed=True)

    def skip(self, reason: str) -> None:
        """This microbatch contributes nothing, on purpose; it is the same as a weight of 0.

        Args:
            reason: why; it is written to the trace.

        Raises:
            LoopError: outside of a microbatch, or after its backward.
        """
        open_ = self._begin("step.skip")
        if not isinstance(reason, str) or not reason:
            raise LoopError("step.skip needs a reason")
        open_.begun = True
        self._fold(open_, 0.0, None)
        self._machinery.engine.note("skipped", index=open_.index, reason=reason)

    def record(self, name: str, value: float | Tensor, weight: float = 1) -> None:
        """Note a number of this microbatch; ``step.numbers`` has the weighted mean over the whole step.

        Args:
            name: at most once per microbatch.
            value: a single number.
            weight: in the mean, e.g. the tokens that it was taken over.

        Raises:
            LoopError: outside of a microbatch, a second time under the same name, or no number.
        """
        open_ = self._open
        if open_ is None:
            raise LoopError(f"step.record({name!r}) was called outside of a microbatch: call it in `for batch in step`")
        name, number, weight = checked(name, value, weight)
        if name in open_.numbers:
            raise LoopError(f"{name} was recorded twice for microbatch {open_.index} of step {self.number}")
        open_.numbers[name] = (number, weight)

    def _begin(self, call: str) -> Microbatch:
        open_ = self._open
        if open_ is None:
            raise LoopError(f"{call} was called outside of a microbatch: call it inside `for batch in step`")
        if open_.begun:
            raise LoopError(
                f"{call} was called a second time for microbatch {open_.index} of step {self.number}: each has one "
                "gradient (step.microbatch is for those that are made in parts)"
            )
        self._machinery.gradients.refuse_gradients()
        return open_

    def _fold(self, open_: Microbatch, weight: float, loss: Tensor | None, unweighed: bool = False) -> None:
        machinery = self._machinery
        factor = weight if unweighed and weight else 1.0
        # What stands for a buffer is weighed with the gradients.
        machinery.buffers.close(weight / factor)
        peak = machinery.gradients.fold(factor)
        if not open_.aside:
            self._training.add(open_.index, weight, loss, peak)
            machinery.engine.done(open_.index, open_.started, open_.loading)
        if open_.signer is not None:
            open_.signature = open_.signer.signature(loss)
        open_.folded = True

    def _compute(self, open_: Microbatch, upcoming: tuple[tuple[int, int], ...] = ()) -> Iterator[Any]:
        machinery = self._machinery
        # Before it is loaded: what fails there is this microbatch's as well.
        self._open = open_
        machinery.engine.board.doing(Activity.LOADING, open_.index)
        batch = machinery.loader.load(self.number, open_.index, upcoming)
        machinery.engine.board.doing(Activity.COMPUTING, open_.index)
        called, open_.started = open_.started, time.monotonic()
        open_.loading = open_.started - called
        machinery.engine.stopwatch.start()
        seed_everything(mix(machinery.seed, self.number, open_.index))
        machinery.chaos.at(FaultPoint.BEFORE_FORWARD)
        if open_.signer is not None:
            machinery.gradients.sign(open_.signer)
        yield batch
        machinery.gradients.refuse_gradients()
        if not open_.folded:
            raise LoopError(self._unfolded(open_))
        if not open_.aside and open_.numbers:
            self._training.note(open_.index, open_.numbers)
        self._open = None

    def _unfolded(self, open_: Microbatch) -> str:
        what = f"microbatch {open_.index} of step {self.number}"
        if open_.begun:
            return (
                f"the backward of {what} failed and its exception was caught: a part of its gradient is summed, so let "
                "the exception out"
            )
        return (
            f"{what} ended without step.backward(loss): every microbatch counts, call it exactly once (weight=0, or "
            "step.skip(reason), contributes nothing)"
        )

    def _aside(self, index: int) -> Generator[Any, None, int | None]:
        """Compute a microbatch that this rank does not sum; returns the signature of its gradient."""
        engine, chaos = self._machinery.engine, self._machinery.chaos
        open_ = Microbatch(index, time.monotonic(), aside=True, signer=Signer(folds=False))
        chaos.aside = True
        try:
            yield from self._compute(open_, engine.upcoming(index, self._following))
        finally:
            # Training may begin anew in this process.
            chaos.aside = False
        return open_.signature

    def _decided(self, what: str) -> Census:
        if self._census is None:
            raise LoopError(f"step.{what} is known only after all batches of step {self.number} are consumed")
        return self._census

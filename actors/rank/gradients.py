"""The gradient sum of a step: folded as a backward makes it, reduced out of place, published as ``.grad``."""

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from ...conf.chaos import FaultPoint
from ...conf.elastic import Reduction
from ...conf.errors import CommunicatorError, LoopError
from ..faults import Chaos
from . import grid
from .buckets import Slot, fill, zeros_for
from .communicator import Communicator
from .kernel import fused_kernel, takes
from .published import Published
from .signing import Signer
from .transfer import await_partial_transfer


class GradientSum:
    """Accumulators, buckets and exponents of all trained parameters.

    Args:
        parameters: by name, in a fixed order that is the same on all ranks; what requires no gradient is summed too,
            if something is left in its ``.grad``.
        reduction: exact or float.
        microbatches: B, the largest of all steps.
        bucket_bytes: target size of a bucket's accumulator.
        max_world: most ranks that will ever reduce together.

    Raises:
        LoopError: no parameter to train.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        reduction: Reduction,
        microbatches: int,
        bucket_bytes: int,
        max_world: int,
    ) -> None:
        self._exact = reduction is Reduction.EXACT
        self._microbatches = microbatches
        self._bucket_bytes = bucket_bytes
        self._max_world = max_world
        self._kernel = fused_kernel() if self._exact else None
        # Exponents of all tensors that were ever summed.
        self.known: dict[str, int] = {}
        self._hooks: list[RemovableHandle] = []
        self._build(parameters)
        # Largest magnitudes of the microbatch under way: (order, value), several of one parameter are added.
        self._peaks: list[tuple[int, float]] = []
        self._ranges: list[tuple[int, Tensor]] = []
        self._folding = False
        # Whether a backward makes every gradient at most once; None before the first.
        self._regular: bool | None = None
        self._early: Communicator | None = None
        self._silent = False
        self._launched = 0
        self._broken: CommunicatorError | None = None
        self._chaos: Chaos | None = None
        self._signer: Signer | None = None

    # --- layout

    def _build(self, parameters: Mapping[str, Tensor]) -> None:
        if not any(parameter.requires_grad for parameter in parameters.values()):
            raise LoopError("the model has no parameter that requires a gradient")
        for hook in self._hooks:
            hook.remove()
        self._parameters = dict(parameters)
        self._nothing: Tensor | None = None
        self.names = tuple(parameters)
        dtype = torch.float64 if self._exact else torch.float32
        self._buckets = fill(parameters, dtype, self._bucket_bytes, self._max_world)
        # Backward reaches the last parameters first, so the walk follows it.
        self._slots = [slot for bucket in self._buckets for slot in bucket.slots]
        first = grid.first_exponent(self._microbatches)
        self.exponents = tuple(self.known.get(name, first) for name in self.names)
        self.published = Published()
        self._device = self._buckets[0].sums.device
        self._extremes = torch.zeros(len(self.names), dtype=torch.float64, device=self._device)
        self._hooks = [
            slot.parameter.register_post_accumulate_grad_hook(functools.partial(self._made, slot))
            for slot in self._slots
            if slot.parameter.requires_grad
        ]

    @property
    def buckets(self) -> int:
        return len(self._buckets)

    @property
    def extra_bytes_per_parameter(self) -> float:
        """Bytes beyond what plain training holds (parameter, gradient, optimizer state), per parameter."""
        count = sum(bucket.count for bucket in self._buckets)
        received = sum(bucket.sums.nbytes for bucket in self._buckets)
        means = sum(4 * bucket.sums.numel() for bucket in self._buckets)
        # In float the accumulator is the gradient that plain training holds too.
        sums = received if self._exact else 0
        return (sums + received + means) / count

    def reset(self, parameters: Mapping[str, Tensor] | None = None) -> None:
        """Begin a step: accumulators are empty, and so is every ``.grad``.

        Args:
            parameters: that are trained from now on; None changes nothing.
        """
        if parameters is not None and not _same(parameters, self._parameters):
            for slot in self._slots:
                slot.parameter.grad = None
            self._build(parameters)
        for slot in self._slots:
            slot.fresh = True
            slot.parameter.grad = None
        self._extremes.zero_()
        if self._early is not None:
            self.forget()

    def refuse_gradients(self) -> None:
        """Nothing but a microbatch may leave a gradient.

        Raises:
            LoopError: a bare ``loss.backward()`` was called.
        """
        for bucket in self._buckets:
            added = bucket.sums._version != bucket.version
            for slot in bucket.slots:
                gradient = slot.parameter.grad
                if gradient is not None and (added or gradient is not slot.sum):
                    raise LoopError(
                        f"{slot.name} has a gradient that step.backward(loss) did not make: use step.backward instead "
                        "of loss.backward(), once per microbatch, and leave .grad alone until the step is whole"
                    )

    # --- folding

    @contextmanager
    def backward(
        self, last: Communicator | None = None, chaos: Chaos | None = None, silent: bool = False
    ) -> Iterator[None]:
        """While it lasts every gradient is folded as soon as it is made, while it is warm.

        Args:
            last: given in the last backward that this rank owes: exchange buckets over it as they become whole.
            silent: as in ``exchange``; then they are whole from the beginning.
        """
        if self._early is not None:
            self.forget()
        # What a backward does is known once one was seen.
        if last is not None and last.size > 1 and self._regular:
            self._early, self._silent, self._chaos = last, silent, chaos
        for bucket in self._buckets:
            bucket.waiting = 0 if silent else len(bucket.slots)
        self._launch_whole()
        self._folding = True
        try:
            yield
        finally:
            self._folding = False
            if self._regular is None:
                self._regular = True
            for slot in self._slots:
                slot.taken = False

    def fold(self, weight: float = 1.0) -> Tensor:
        """Take what is left in ``.grad``, times ``weight``, and close the microbatch.

        Returns:
            Largest |gradient| of the microbatch, float64, shape [], +inf if one is not finite, on the device; in float
            0, since there only the sum is looked at.

        Raises:
            LoopError: a sparse gradient.
        """
        for slot in self._slots:
            gradient = slot.parameter.grad
            if gradient is not None and gradient is not slot.sum:
                self._take(slot, weight)
        self._signer = None
        for bucket in self._buckets:
            bucket.version = bucket.sums._version
        latest = torch.zeros(len(self.names), dtype=torch.float64, device=self._device)
        if self._peaks:
            orders, peaks = zip(*self._peaks, strict=True)
            latest.index_add_(0, torch.tensor(orders), torch.tensor(peaks, dtype=torch.float64))
        if self._ranges:
            places, ranges = zip(*self._ranges, strict=True)
            peak = torch.stack(ranges).abs_().amax(dim=1).to(torch.float64)
            latest.index_add_(0, torch.tensor(places, device=self._device), peak)
        self._peaks, self._ranges = [], []
        latest.nan_to_num_(nan=torch.inf, posinf=torch.inf)
        torch.maximum(self._extremes, latest, out=self._extremes)
        return latest.amax()

    def _made(self, slot: Slot, _: Tensor) -> None:
        """Autograd has just set or added to this parameter's ``.grad``."""
        if not self._folding:
            return
        self._take(slot)
        if slot.taken:
            # Autograd comes to it several times in one backward, so no bucket is known to be whole before the end.
            self._regular = False
            if self._launched > slot.bucket and not self._silent:
                self._broken = CommunicatorError(f"{slot.name} got another gradient after its bucket was sent")
            return
        slot.taken = True
        self._buckets[slot.bucket].waiting -= 1
        self._launch_whole()

    @torch.no_grad()
    def _take(self, slot: Slot, weight: float = 1.0) -> None:
        gradient = slot.parameter.grad
        assert gradient is not None
        slot.refuse_sparse()
        if weight != 1:
            gradient = gradient.to(torch.float32) * weight
        signer = self._signer
        if signer is not None:
            signer.take(slot.name, gradient)
            if not signer.folds:
                slot.parameter.grad = None
                return
        if self._exact:
            slot.parameter.grad = None
            if gradient.numel():
                self._round(slot, gradient)
            return
        # Leave the first gradient in place as the accumulator: autograd itself adds the others to it.
        if gradient is slot.sum:
            return
        if slot.fresh:
            slot.sum.copy_(gradient)
            slot.fresh = False
        else:
            slot.sum.add_(gradient)
        # What is signed must not have others added to it.
        slot.parameter.grad = slot.sum if gradient.dtype is slot.sum.dtype and signer is None else None

    def _round(self, slot: Slot, gradient: Tensor) -> None:
        """Round to the grid, add to the accumulator, note the largest magnitude."""
        if gradient.dtype is not torch.float32:
            gradient = gradient.to(torch.float32)
        scale = 2.0 ** -self.exponents[slot.order]
        if self._kernel is not None and takes(gradient):
            self._peaks.append((slot.order, self._kernel.fold(gradient, slot.sum, scale, slot.fresh)))
        else:
            self._ranges.append((slot.order, torch.stack(torch.aminmax(gradient))))
            gradient.mul_(scale).round_()
            if slot.fresh:
                slot.sum.copy_(gradient)
            else:
                slot.sum.add_(gradient)
        slot.fresh = False

    def drop(self) -> None:
        """What is in ``.grad`` contributes nothing."""
        for slot in self._slots:
            if slot.parameter.grad is not slot.sum:
                slot.parameter.grad = None

    def detach(self) -> None:
        """Empty ``.grad`` without losing a sum: for microbatches whose own gradient is wanted."""
        for slot in self._slots:
            slot.parameter.grad = None

    def sign(self, signer: Signer) -> None:
        """Show what the next microbatch gives to ``signer``, until it is closed by ``fold``."""
        self.detach()
        self._signer = signer

    def finite(self) -> bool:
        """Whether the sum of this rank is finite; in exact every microbatch was looked at already."""
        return self._exact or all(bool(bucket.sums.sum().isfinite()) for bucket in self._buckets)

    def maxima(self) -> Tensor:
        """Largest |gradient| by parameter over the microbatches folded so far, float64, shape [parameters]."""
        return self._extremes

    def touched(self) -> list[bool]:
        """By parameter, in the order of ``names``: did any folded microbatch give it a gradient."""
        return [not slot.fresh for slot in sorted(self._slots, key=lambda slot: slot.order)]

    # --- reducing

    def _launch_whole(self) -> None:
        """Exchange, in the one order of buckets, those that the last backward has made whole."""
        communicator = self._early
        while (
            communicator is not None
            and self._regular
            and self._broken is None
            and self._launched < len(self._buckets)
            and not self._buckets[self._launched].waiting
        ):
            try:
                self._launch_next(communicator, self._chaos)
            except CommunicatorError as error:
                # The user's backward is no place to fail in: ``exchange`` tells.
                self._broken = error

    def _launch_next(self, communicator: Communicator, chaos: Chaos | None) -> None:
        place = self._launched
        bucket = self._buckets[place]
        self._launched += 1
        if self._silent and self._nothing is None:
            self._nothing = zeros_for(self._buckets)
        instead = self._nothing if self._silent else None
        if chaos is None:
            bucket.launch(communicator, instead=instead)
            return
        watch = None
        if chaos.planned(FaultPoint.IN_TRANSFER) and communicator.size > 1:
            communicator.throttle()

            def watch(received: Tensor) -> None:
                if evidence := await_partial_transfer(received, communicator.size, communicator.rank):
                    chaos.at(FaultPoint.IN_TRANSFER, f"bucket {place}: {evidence}")

        bucket.launch(communicator, watch, instead)
        if place == 0:
            chaos.at(FaultPoint.FIRST_BUCKET)
        if place == len(self._buckets) // 2:
            chaos.at(FaultPoint.MIDDLE_BUCKET)
        if place == len(self._buckets) - 1:
            chaos.at(FaultPoint.LAST_BUCKET)

    @torch.no_grad()
    def exchange(self, communicator: Communicator, chaos: Chaos | None = None, silent: bool = False) -> None:
        """Begin the exchange of all buckets that no backward has begun in this group.

        Args:
            silent: send zeros, and keep the sums.

        Raises:
            CommunicatorError: a collective failed; call ``forget``, then exchange again in another generation.
        """
        if self._early is not communicator:
            if self._early is not None:
                self.forget()
            self._early, self._silent = communicator, silent
        assert self._silent is silent, "a rank changes its role only with its group"
        if self._broken is not None:
            raise self._broken
        while self._launched < len(self._buckets):
            self._launch_next(communicator, chaos)

    @torch.no_grad()
    def gather(self, communicator: Communicator, weight: float) -> None:
        """Sum over all peers, divide by the step's whole weight, gather the means as float32.

        Raises:
            CommunicatorError: as in ``exchange``.
        """
        # Of a step without weight nothing is used.
        weight = weight or 1.0
        scales = {order: 2.0**exponent for order, exponent in enumerate(self.exponents)} if self._exact else {}
        gathers = [bucket.gather(communicator, scales, weight, self._kernel) for bucket in self._buckets]
        for pending in gathers:
            if pending is not None:
                pending.wait()
        self._early, self._launched = None, 0

    def forget(self) -> None:
        """Drop output buffers that a failed reduction may still write into."""
        self._early, self._launched, self._broken = None, 0, None
        for bucket in self._buckets:
            bucket.forget()

    def publish(self, touched: list[bool]) -> None:
        """Set every ``.grad`` to the committed weighted mean; None where no microbatch of the step touched it."""
        self.published.publish(self._buckets, touched)

    def advance(self, maxima: list[float], *, committed: bool) -> None:
        """Fit the grid to what the decided attempt has shown; the same on every rank."""
        if self._exact:
            held = list(self.exponents)
            self.exponents = grid.next_exponents(maxima, held, self._microbatches, committed=committed)
            self.known.update(zip(self.names, self.exponents, strict=True))

    def know(self, exponents: Mapping[str, int]) -> None:
        """Take the grid of another rank, which has gone further."""
        self.known.update(exponents)
        self.exponents = tuple(map(self.known.get, self.names, self.exponents))

    def misfits(self, maxima: list[float]) -> list[str]:
        """Names of parameters whose largest |gradient| does not fit the grid of this attempt."""
        if not self._exact:
            return []
        rows = zip(self.names, maxima, self.exponents, strict=True)
        return [name for name, maximum, held in rows if not grid.fits(maximum, held, self._microbatches)]


def _same(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    return list(first) == list(second) and all(first[name] is second[name] for name in first)

"""The gradient sum of a step: folded microbatch by microbatch, reduced out of place, published as ``.grad``.

Accumulators are read and never written by a collective, so one that dies half-way leaves them intact: they are the
snapshot from which the next generation reduces again. Output buffers belong to one attempt at a reduction; after a
failure they are dropped, since threads of the dead group may still write into them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ...conf.chaos import FaultPoint
from ...conf.elastic import Reduction
from ...conf.errors import LoopError
from ..faults import Chaos
from . import grid
from .communicator import Communicator
from .kernel import fused_fold, takes
from .transfer import await_partial_transfer

_FLOAT32_MAX = torch.finfo(torch.float32).max


@dataclass
class _Slot:
    """A parameter's place in a bucket."""

    name: str
    parameter: Tensor
    order: int
    offset: int
    sum: Tensor
    fresh: bool = True


class _Bucket:
    """Parameters that are reduced with one exchange.

    The accumulator has slack at its end so that any world up to ``max_world`` divides it evenly.
    """

    def __init__(self, parameters: list[tuple[int, str, Tensor]], dtype: torch.dtype, max_world: int) -> None:
        self.count = sum(parameter.numel() for _, _, parameter in parameters)
        self._slack = max_world
        device = parameters[0][2].device
        self.sums = torch.zeros(self.count + self._slack, dtype=dtype, device=device)
        self.version = self.sums._version
        self.slots: list[_Slot] = []
        offset = 0
        for order, name, parameter in parameters:
            view = self.sums[offset : offset + parameter.numel()].view(parameter.shape)
            self.slots.append(_Slot(name, parameter, order, offset, view))
            offset += parameter.numel()
        self.received: Tensor | None = None
        self.total: Tensor | None = None

    def padded(self, world: int) -> int:
        return -(-self.count // world) * world

    def buffers(self) -> tuple[Tensor, Tensor]:
        """Where parts arrive, and where the total will stand; made again after ``forget``."""
        if self.received is None or self.total is None:
            self.received = torch.empty_like(self.sums)
            self.total = torch.empty(self.sums.numel(), dtype=torch.float32, device=self.sums.device)
        return self.received, self.total

    def forget(self) -> None:
        self.received = self.total = None


class GradientSum:
    """Accumulators, buckets and exponents of all trained parameters.

    Args:
        parameters: by name, in a fixed order that is the same on all ranks.
        reduction: exact or float.
        microbatches: B.
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
        if not parameters:
            raise LoopError("the model has no parameter that requires a gradient")
        self._exact = reduction is Reduction.EXACT
        self._microbatches = microbatches
        self._fused = fused_fold() if self._exact else None
        self.names = tuple(parameters)
        dtype = torch.float64 if self._exact else torch.float32
        self._buckets = _fill(parameters, dtype, bucket_bytes, max_world)
        # Backward reaches the last parameters first, so the walk follows it.
        self._slots = [slot for bucket in self._buckets for slot in bucket.slots]
        self.exponents = (grid.first_exponent(microbatches),) * len(self.names)
        device = self._buckets[0].sums.device
        self._extremes = torch.zeros(len(self.names), dtype=torch.float64, device=device)
        self._latest = torch.zeros(len(self.names), dtype=torch.float64, device=device)

    @property
    def buckets(self) -> int:
        return len(self._buckets)

    @property
    def extra_bytes_per_parameter(self) -> float:
        """Bytes beyond what plain training holds (parameter, gradient, optimizer state), per parameter."""
        count = sum(bucket.count for bucket in self._buckets)
        received = sum(bucket.sums.nbytes for bucket in self._buckets)
        totals = sum(4 * bucket.sums.numel() for bucket in self._buckets)
        # In float the accumulator is the gradient that plain training holds too.
        sums = received if self._exact else 0
        return (sums + received + totals) / count

    def reset(self) -> None:
        """Begin a step: accumulators are empty, and so is every ``.grad``."""
        for slot in self._slots:
            slot.fresh = True
            slot.parameter.grad = None
        self._extremes.zero_()

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

    def fold(self) -> Tensor:
        """Take the gradients of one microbatch out of ``.grad``.

        Returns:
            Largest |gradient| of the microbatch, float64, shape [], +inf if one is not finite, on the device; in float
            0, since there only the sum is looked at.

        Raises:
            LoopError: a sparse gradient.
        """
        peak = self._fold_exact() if self._exact else self._fold_float()
        for bucket in self._buckets:
            bucket.version = bucket.sums._version
        return peak

    @torch.no_grad()
    def _fold_float(self) -> Tensor:
        """Leave the first gradient in place as the accumulator: autograd itself adds the others to it."""
        for slot in self._slots:
            gradient = slot.parameter.grad
            if gradient is None or gradient is slot.sum:
                continue
            _refuse_sparse(slot.name, gradient)
            if slot.fresh:
                slot.sum.copy_(gradient)
                slot.fresh = False
            else:
                slot.sum.add_(gradient)
            slot.parameter.grad = slot.sum if gradient.dtype is slot.sum.dtype else None
        return self._latest.amax()

    @torch.no_grad()
    def _fold_exact(self) -> Tensor:
        """Round every gradient to its grid and add it to the accumulator."""
        latest: list[Tensor] = []
        places: list[int] = []
        self._latest.zero_()
        for slot in self._slots:
            gradient = slot.parameter.grad
            if gradient is None:
                continue
            _refuse_sparse(slot.name, gradient)
            slot.parameter.grad = None
            if not gradient.numel():
                continue
            if gradient.dtype is not torch.float32:
                gradient = gradient.to(torch.float32)
            scale = 2.0 ** -self.exponents[slot.order]
            if self._fused is not None and takes(gradient):
                self._latest[slot.order] = self._fused(gradient, slot.sum, scale, slot.fresh)
                slot.fresh = False
                continue
            low, high = torch.aminmax(gradient)
            latest += (low, high)
            places.append(slot.order)
            gradient.mul_(scale).round_()
            if slot.fresh:
                slot.sum.copy_(gradient)
                slot.fresh = False
            else:
                slot.sum.add_(gradient)
        if latest:
            self._latest[places] = torch.stack(latest).view(-1, 2).abs_().amax(dim=1).to(torch.float64)
        self._latest.nan_to_num_(nan=torch.inf, posinf=torch.inf)
        torch.maximum(self._extremes, self._latest, out=self._extremes)
        return self._latest.amax()

    def finite(self) -> bool:
        """Whether the sum of this rank is finite; in exact every microbatch was looked at already."""
        return self._exact or all(bool(bucket.sums.sum().isfinite()) for bucket in self._buckets)

    def maxima(self) -> Tensor:
        """Largest |gradient| by parameter over the microbatches folded so far, float64, shape [parameters]."""
        return self._extremes

    def touched(self) -> list[bool]:
        """By parameter, in the order of ``names``: did any folded microbatch give it a gradient."""
        return [not slot.fresh for slot in sorted(self._slots, key=lambda slot: slot.order)]

    @torch.no_grad()
    def reduce(self, communicator: Communicator, chaos: Chaos) -> None:
        """Sum over all peers: exchange parts, add them in the order of ranks, gather the totals as float32.

        Raises:
            CommunicatorError: a collective failed; call ``forget``, then reduce again in another generation.
        """
        for slot in self._slots:
            if slot.fresh:
                slot.sum.zero_()
        world = communicator.size
        if world == 1:
            for bucket in self._buckets:
                _, total = bucket.buffers()
                total.copy_(bucket.sums)
            self._strike(0, chaos)
            return
        exchanges = []
        for place, bucket in enumerate(self._buckets):
            received, _ = bucket.buffers()
            length = bucket.padded(world)
            rehearsed = chaos.planned(FaultPoint.IN_TRANSFER)
            if rehearsed:
                communicator.throttle()
                received.fill_(torch.nan)
            exchanges.append(communicator.all_to_all(received[:length], bucket.sums[:length]))
            if rehearsed and (evidence := await_partial_transfer(received[:length], world, communicator.rank)):
                chaos.at(FaultPoint.IN_TRANSFER, f"bucket {place}: {evidence}")
            self._strike(place, chaos)
        gathers = []
        for bucket, exchange in zip(self._buckets, exchanges, strict=True):
            exchange.wait()
            received, total = bucket.buffers()
            length = bucket.padded(world)
            parts = received[:length].view(world, -1)
            mine = parts[0]
            for part in parts[1:]:
                mine += part
            shard = mine.to(torch.float32)
            gathers.append((communicator.all_gather(total[:length], shard), shard))
        for gather, _ in gathers:
            gather.wait()

    def _strike(self, place: int, chaos: Chaos) -> None:
        if place == 0:
            chaos.at(FaultPoint.FIRST_BUCKET)
        if place == len(self._buckets) // 2:
            chaos.at(FaultPoint.MIDDLE_BUCKET)
        if place == len(self._buckets) - 1:
            chaos.at(FaultPoint.LAST_BUCKET)

    def forget(self) -> None:
        """Drop output buffers that a failed reduction may still write into."""
        for bucket in self._buckets:
            bucket.forget()

    @torch.no_grad()
    def publish(self, total_weight: float, touched: list[bool]) -> None:
        """Set every ``.grad`` to the committed weighted mean; None where no microbatch of the step touched it."""
        for bucket in self._buckets:
            assert bucket.total is not None
            for slot in bucket.slots:
                parameter = slot.parameter
                if not touched[slot.order]:
                    parameter.grad = None
                    continue
                mean = bucket.total[slot.offset : slot.offset + parameter.numel()].view(parameter.shape)
                scale = 2.0 ** self.exponents[slot.order] if self._exact else 1.0
                if total_weight / scale <= _FLOAT32_MAX:
                    mean /= total_weight / scale
                else:
                    # So tiny are the gradients that the divisor alone would be infinite.
                    mean /= total_weight
                    mean *= scale
                parameter.grad = mean if parameter.dtype is torch.float32 else mean.to(parameter.dtype)

    def advance(self, maxima: list[float], *, committed: bool) -> None:
        """Fit the grid to what the decided attempt has shown; the same on every rank."""
        if self._exact:
            held = list(self.exponents)
            self.exponents = grid.next_exponents(maxima, held, self._microbatches, committed=committed)

    def misfits(self, maxima: list[float]) -> list[str]:
        """Names of parameters whose largest |gradient| does not fit the grid of this attempt."""
        if not self._exact:
            return []
        rows = zip(self.names, maxima, self.exponents, strict=True)
        return [name for name, maximum, held in rows if not grid.fits(maximum, held, self._microbatches)]


def _refuse_sparse(name: str, gradient: Tensor) -> None:
    if gradient.layout is not torch.strided:
        raise LoopError(f"{name} has a sparse gradient: everstep sums dense ones, use sparse=False")


def _fill(parameters: Mapping[str, Tensor], dtype: torch.dtype, bucket_bytes: int, max_world: int) -> list[_Bucket]:
    """Parameters in the order in which a backward is likely to finish them, cut into buckets of about one size."""
    limit = max(1, bucket_bytes // dtype.itemsize)
    ordered = [(order, name, parameter) for order, (name, parameter) in enumerate(parameters.items())]
    groups: list[list[tuple[int, str, Tensor]]] = [[]]
    filled = 0
    for entry in reversed(ordered):
        if groups[-1] and filled + entry[2].numel() > limit:
            groups.append([])
            filled = 0
        groups[-1].append(entry)
        filled += entry[2].numel()
    return [_Bucket(group, dtype, max_world) for group in groups]

"""Accumulators cut into buckets, and how one bucket becomes the mean over all peers.

Accumulators are read and never written by a collective, so one that dies half-way leaves them intact: they are the
snapshot from which the next generation reduces again. Output buffers belong to one attempt at a reduction; after a
failure they are dropped, since threads of the dead group may still write into them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...conf.errors import LoopError
from .communicator import Communicator, Pending
from .kernel import Kernel


@dataclass(eq=False)
class Slot:
    """A parameter's place in a bucket.

    Attributes:
        order: place among all parameters.
        bucket: place of its bucket.
        offset: of its first value in the bucket.
        sum: view of the accumulator, in the parameter's shape.
        fresh: nothing was added in this step; what ``sum`` holds is of an earlier one.
        taken: its gradient of the microbatch under way is in.
    """

    name: str
    parameter: Tensor
    order: int
    bucket: int
    offset: int
    sum: Tensor
    fresh: bool = True
    taken: bool = False

    def refuse_sparse(self) -> None:
        """Refuse a gradient that no bucket can hold.

        Raises:
            LoopError: a sparse one.
        """
        gradient = self.parameter.grad
        if gradient is not None and gradient.layout is not torch.strided:
            raise LoopError(f"{self.name} has a sparse gradient: everstep sums dense ones, use sparse=False")


class Bucket:
    """Parameters that are reduced with one exchange.

    The accumulator has slack at its end so that any world up to ``max_world`` divides it evenly; a larger one sends a
    copy with more of it.
    """

    def __init__(
        self, place: int, parameters: list[tuple[int, str, Tensor]], dtype: torch.dtype, max_world: int
    ) -> None:
        self.count = sum(parameter.numel() for _, _, parameter in parameters)
        self.sums = torch.zeros(self.count + max_world, dtype=dtype, device=parameters[0][2].device)
        self._length = self.sums.numel()
        self.version = self.sums._version
        self.slots: list[Slot] = []
        offset = 0
        for order, name, parameter in parameters:
            view = self.sums[offset : offset + parameter.numel()].view(parameter.shape)
            self.slots.append(Slot(name, parameter, order, place, offset, view))
            offset += parameter.numel()
        self.waiting = len(self.slots)
        self.exchange: Pending | None = None
        self._received: Tensor | None = None
        self._mean: Tensor | None = None

    @property
    def mean(self) -> Tensor:
        """Where the mean over the step stands, or will stand: float32, in the order of the slots."""
        if self._mean is None:
            self._mean = torch.empty(self._length, dtype=torch.float32, device=self.sums.device)
        return self._mean

    @property
    def received(self) -> Tensor:
        """Where the parts of all peers arrive."""
        if self._received is None:
            self._received = self.sums.new_empty(self._length)
        return self._received

    def launch(
        self,
        communicator: Communicator,
        watch: Callable[[Tensor], None] | None = None,
        instead: Tensor | None = None,
    ) -> None:
        """Begin to exchange parts: part i goes to rank i.

        Args:
            instead: zeros of at least this length to send, the sums stay with this rank; not if it is alone.
            watch: called with the output buffer, full of NaN before, once the exchange is under way.

        Raises:
            CommunicatorError: the group is broken.
        """
        for slot in self.slots:
            if slot.fresh:
                slot.sum.zero_()
        if communicator.size == 1:
            return
        length = self._padded(communicator.size)
        if length > self._length:
            self._length, self._received, self._mean = length, None, None
        received = self.received[:length]
        if watch is not None:
            received.fill_(torch.nan)
        source = self.sums if instead is None else instead
        missing = length - source.numel()
        sent = source[:length] if missing <= 0 else torch.cat([source, source.new_zeros(missing)])
        self.exchange = communicator.all_to_all(received, sent)
        if watch is not None:
            watch(received)

    def gather(
        self, communicator: Communicator, scales: Mapping[int, float], weight: float, kernel: Kernel | None
    ) -> Pending | None:
        """Add the parts in the order of ranks, make a mean of the sum, and begin to gather everybody's.

        Args:
            scales: by the order of parameters, what a sum is multiplied with; empty leaves it.
            weight: what the sum is divided by.

        Raises:
            CommunicatorError: the exchange failed, or the group is broken.
        """
        world = communicator.size
        if world == 1:
            parts, begin, mean = self.sums[: self.count].view(1, -1), 0, self.mean
        else:
            assert self.exchange is not None
            self.exchange.wait()
            self.exchange = None
            parts = self.received[: self._padded(world)].view(world, -1)
            begin = communicator.rank * parts.shape[1]
            mean = torch.empty(parts.shape[1], dtype=torch.float32, device=parts.device)
        self._average(parts, begin, mean[: parts.shape[1]], scales, weight, kernel)
        return communicator.all_gather(self.mean[: self._padded(world)], mean) if world > 1 else None

    def _average(
        self,
        parts: Tensor,
        begin: int,
        mean: Tensor,
        scales: Mapping[int, float],
        weight: float,
        kernel: Kernel | None,
    ) -> None:
        """``parts`` are what peers hold of the bucket's values from ``begin`` on."""
        cuts = []
        for slot in self.slots:
            first = max(slot.offset - begin, 0)
            last = min(slot.offset + slot.parameter.numel() - begin, parts.shape[1])
            if first < last and scales:
                cuts.append((first, last, scales[slot.order]))
        if kernel is not None and parts.device.type == "cpu" and parts.dtype is torch.float64:
            for first, last, scale in cuts:
                kernel.mean(parts, first, last, scale, weight, mean)
            return
        # What was received may be written; a world of one reads its own accumulators.
        # -0 becomes +0: how many peers gave a zero must not show.
        total = parts[0] + 0.0 if parts.shape[0] == 1 else parts[0].add_(0.0)
        for part in parts[1:]:
            total += part
        if cuts:
            views = [total[first:last] for first, last, _ in cuts]
            torch._foreach_mul_(views, [scale for _, _, scale in cuts])
        mean.copy_(total.div_(weight))

    def forget(self) -> None:
        """Drop buffers that a failed reduction may still write into."""
        self.exchange = self._received = self._mean = None

    def _padded(self, world: int) -> int:
        return -(-self.count // world) * world


def zeros_for(buckets: Sequence[Bucket]) -> Tensor:
    """What a rank sends that adds nothing; all exchanges may read the same."""
    return torch.zeros_like(max((bucket.sums for bucket in buckets), key=len))


def fill(parameters: Mapping[str, Tensor], dtype: torch.dtype, bucket_bytes: int, max_world: int) -> list[Bucket]:
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
    return [Bucket(place, group, dtype, max_world) for place, group in enumerate(groups)]

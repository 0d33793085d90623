"""The committed gradient as it stands in ``.grad``, and how one sees that somebody erased it."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from .buckets import Bucket, Slot

# Gradients that are looked at to find one that is not zero.
_WITNESSES = 3


class Published:
    """The gradients of one step; none before ``publish``."""

    def __init__(self) -> None:
        self._slots: list[Slot] = []
        self._witness: Slot | None = None

    @torch.no_grad()
    def publish(self, buckets: Sequence[Bucket], touched: Sequence[bool]) -> None:
        """Set every ``.grad`` to the committed weighted mean; None where no microbatch of the step touched it."""
        self._slots = []
        for bucket in buckets:
            for slot in bucket.slots:
                parameter = slot.parameter
                if not touched[slot.order]:
                    parameter.grad = None
                    continue
                mean = bucket.mean[slot.offset : slot.offset + parameter.numel()].view(parameter.shape)
                parameter.grad = mean if parameter.dtype is torch.float32 else mean.to(parameter.dtype)
                self._slots.append(slot)
        smallest = sorted(self._slots, key=lambda slot: slot.parameter.numel())[:_WITNESSES]
        self._witness = next((slot for slot in smallest if not _empty(slot)), None)

    def erased(self, parameters: Iterable[Tensor]) -> str | None:
        """The name of one of these whose committed gradient is gone, None if all is well."""
        mine = {id(parameter) for parameter in parameters}
        for slot in self._slots:
            if id(slot.parameter) in mine and slot.parameter.grad is None:
                return slot.name
        # Zeroed in place, all are zero, so one that was not tells.
        witness = self._witness
        return witness.name if witness is not None and id(witness.parameter) in mine and _empty(witness) else None


def _empty(slot: Slot) -> bool:
    gradient = slot.parameter.grad
    return gradient is None or not bool(gradient.any())

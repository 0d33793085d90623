"""Buffers that a forward changes, such as running statistics: refused, or folded over the step like a gradient.

Every microbatch begins with the value that the step began with, and its change goes into the step's weighted mean. So
what a buffer becomes does not depend on who computed what, or in which order.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...conf.elastic import Buffers as Mode
from ...conf.errors import LoopError


@dataclass(eq=False)
class _Held:
    """One buffer of one module.

    Attributes:
        tensor: the one that the module had when the step began.
        start: a copy of its value then.
        version: of ``tensor`` when it was copied.
        shadow: stands for the buffer among the parameters; its ``.grad`` is the change.
    """

    name: str
    module: nn.Module
    key: str
    tensor: Tensor
    start: Tensor
    version: int
    shadow: Tensor

    @property
    def now(self) -> Tensor | None:
        return self.module._buffers.get(self.key)

    def take(self) -> None:
        """What the buffer is now is what it begins with."""
        if (now := self.now) is not None:
            self.tensor, self.start, self.version = now, now.clone(), now._version

    def noted(self) -> bool:
        """Whether autograd knows of a change. Not every kernel tells it: those of batch norms do not."""
        now = self.now
        return now is not self.tensor or now._version != self.version

    def differs(self) -> bool:
        now = self.now
        return now is None or now.shape != self.start.shape or not torch.equal(now, self.start)

    def restore(self) -> None:
        self.tensor.copy_(self.start)
        self.module._buffers[self.key] = self.tensor
        self.version = self.tensor._version


class Buffers:
    """All buffers of all models.

    Args:
        models: by name.
        mode: refuse or fold.
    """

    def __init__(self, models: Mapping[str, nn.Module], mode: Mode) -> None:
        self._mode = mode
        # Values are compared in the first microbatch; where nothing is folded, what a forward does then it always does.
        self._compared = False
        self._held = [
            _Held(name, module, key, tensor, tensor.clone(), tensor._version, _shadow(tensor))
            for name, module, key, tensor in _buffers(models)
        ]

    @property
    def shadows(self) -> dict[str, Tensor]:
        """What is summed with the gradients, by the name of the buffer."""
        if self._mode is Mode.REFUSE:
            return {}
        return {f"buffer {held.name}": held.shadow for held in self._held if _can_be_summed(held.start)}

    @property
    def values(self) -> dict[str, Tensor]:
        """By name, with what the step under way began."""
        return {held.name: held.start for held in self._held}

    @torch.no_grad()
    def set(self, values: Mapping[str, Tensor]) -> None:
        """Give every buffer the value that it has on another rank.

        Raises:
            RuntimeError: one of another shape.
        """
        for held in self._held:
            if (now := held.now) is not None:
                now.copy_(values[held.name])
                held.take()

    @torch.no_grad()
    def begin(self) -> None:
        """A step begins: whatever was done to buffers between the steps is what they are now."""
        for held in self._held:
            if held.noted() or not self._compared:
                held.take()

    @torch.no_grad()
    def close(self, weight: float) -> None:
        """A microbatch ends: take its change, and give the next one the value that this one began with.

        Raises:
            LoopError: the change cannot be, or may not be, folded.
        """
        for held in self._held:
            if (self._compared and not held.noted()) or not held.differs():
                continue
            now = held.now
            if self._mode is Mode.REFUSE:
                raise LoopError(
                    f"the forward changed the buffer {held.name}: it would depend on who computes what. Use a module "
                    "without running statistics, or elastic.buffers=fold, which averages the changes over the step"
                )
            if now is None or now.shape != held.start.shape or not _can_be_summed(now):
                raise LoopError(
                    f"the forward replaced the buffer {held.name} by another shape or kind: its change cannot be folded"
                )
            if weight:
                held.shadow.grad = ((now.double() - held.start.double()) * weight).float()
            held.restore()
        self._compared = self._mode is Mode.REFUSE

    @torch.no_grad()
    def publish(self) -> None:
        """Apply the committed mean change."""
        for held in self._held:
            change = held.shadow.grad
            if change is None:
                continue
            held.shadow.grad = None
            value = held.start.double() + change.double()
            held.tensor.copy_(value if held.start.is_floating_point() else value.round())


def _buffers(models: Mapping[str, nn.Module]) -> Iterator[tuple[str, nn.Module, str, Tensor]]:
    seen: set[int] = set()
    for prefix, model in models.items():
        for path, module in model.named_modules():
            for key, tensor in module._buffers.items():
                if tensor is not None and id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield ".".join(part for part in (prefix, path, key) if part), module, key, tensor


def _shadow(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=torch.float32, device=tensor.device)


def _can_be_summed(tensor: Tensor) -> bool:
    return tensor.dtype is not torch.bool and not tensor.is_complex()

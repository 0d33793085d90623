"""Planned corruption: one bit of one number is flipped, in an activation, a gradient, a weight or a moment."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ...conf.chaos import FaultKind, FaultPoint
from ..faults import Chaos
from .layers import layers

_WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@torch.no_grad()
def flip(tensor: Tensor, bit: int, place: int) -> None:
    """Flip a bit of one number in place; autograd does not hear of it.

    Args:
        tensor: dense, of real numbers.
        bit: from the lowest on; the highest one that there is, if there are not so many.
        place: of the number in the order of its indices; counted on from the beginning after the end.
    """
    width = 8 * tensor.element_size()
    index = torch.unravel_index(torch.tensor(place % tensor.numel()), tensor.shape)
    number = tensor.data[tuple(index)].reshape(1)
    kind = _WHOLE[tensor.element_size()]
    # Shifted as a signed number of that width, of which the highest bit is the sign.
    mask = torch.tensor([1], dtype=torch.int64) << min(bit, width - 1)
    flipped = number.view(kind) ^ mask.to(kind).to(number.device)
    tensor.data[tuple(index)] = flipped.view(number.dtype)[0]


class Flips:
    """What planned flips strike on this rank: the middle layer and the middle parameter.

    Args:
        chaos: planned faults.
        models: by name.
    """

    def __init__(self, chaos: Chaos, models: Mapping[str, nn.Module]) -> None:
        self._chaos = chaos
        found = layers(models)
        self.layer = list(found)[len(found) // 2]
        named = [(name, held) for name, held in found[self.layer].named_parameters() if held.requires_grad]
        self.weight: Tensor | None = named[0][1] if named else None
        self.parameter = f"{self.layer}.{named[0][0]}".lstrip(".") if named else ""

    def strike(self, point: FaultPoint, kind: FaultKind, tensor: Tensor, what: str) -> None:
        """Flip what is planned here and now, in place."""
        for fault in self._chaos.flips(point, kind, what):
            assert fault.bit is not None
            # Another number each time: the same one flipped twice would be what it was.
            flip(tensor, fault.bit, tensor.numel() // 2 + self._chaos.step)

    def output(self, output: Any) -> Any:
        """What the layer gives."""
        if not isinstance(output, Tensor) or not output.is_floating_point():
            return output
        struck = output.clone()
        self.strike(FaultPoint.IN_FORWARD, FaultKind.FLIP, struck, f"the output of {self.layer}")
        return struck

    def gradient(self, gradient: Tensor) -> Tensor:
        """What a backward gives for the parameter."""
        struck = gradient.clone()
        self.strike(FaultPoint.IN_BACKWARD, FaultKind.FLIP, struck, f"the gradient of {self.parameter}")
        return struck

    def update(self, weight: Tensor, state: Mapping[str, Any]) -> None:
        """What an optimizer has made of the parameter and of what it keeps beside it."""
        self.strike(FaultPoint.IN_OPTIMIZER, FaultKind.FLIP, weight, self.parameter)
        for key, moment in state.items():
            if isinstance(moment, Tensor) and moment.shape == weight.shape:
                what = f"{key} of {self.parameter}"
                self.strike(FaultPoint.IN_OPTIMIZER, FaultKind.FLIP_MOMENT, moment, what)
                return

    @contextmanager
    def aside(self) -> Iterator[None]:
        """In what is computed to be compared: nothing strikes but what recurs."""
        self._chaos.aside = True
        try:
            yield
        finally:
            self._chaos.aside = False

    def arm(self, models: Mapping[str, nn.Module], optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Hook them in the user's own code."""
        layer = layers(models)[self.layer]
        layer.register_forward_hook(lambda module, inputs, output: self.output(output))
        weight = self.weight
        if weight is None:
            return
        weight.register_hook(self.gradient)

        def stepped(optimizer: torch.optim.Optimizer, *_: object) -> None:
            if any(held is weight for group in optimizer.param_groups for held in group["params"]):
                self.update(weight, optimizer.state[weight])

        for optimizer in optimizers:
            optimizer.register_step_post_hook(stepped)

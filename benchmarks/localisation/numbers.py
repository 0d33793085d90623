"""Bits that are flipped in what one rank computes or holds."""

from pathlib import Path
from typing import Any

import torch
from everstep.benchmarks.localisation.plan import Case, Kind
from torch import Tensor, nn

_INTEGERS = {torch.float32: torch.int32}
# A bit of an int32 is a number with a sign.
_SIGN = 31


def chosen(tensor: Tensor, place: float) -> int:
    """Which number is hit: of those that are not 0, or of all if there is none, since the sign of a 0 changes nothing.

    Args:
        place: in [0, 1).
    """
    places = tensor.detach().reshape(-1).nonzero().reshape(-1)
    return int(places[int(place * len(places))]) if len(places) else int(place * tensor.numel())


def flip(tensor: Tensor, index: int, bit: int) -> bool:
    """Flip one bit of one number of a float32 tensor, in place; returns what it is then.

    Args:
        bit: from 0 for the lowest of the significand to 31 for the sign.
    """
    flat = tensor.detach().reshape(-1).view(_INTEGERS[tensor.dtype])
    flat[index] ^= _mask(bit)
    return bool(flat[index] & _mask(bit))


def stick(tensor: Tensor, index: int, bit: int, value: bool) -> None:
    """Set one bit of one number, in place: memory of which one cell is broken."""
    flat = tensor.detach().reshape(-1).view(_INTEGERS[tensor.dtype])
    if bool(flat[index] & _mask(bit)) != value:
        flat[index] ^= _mask(bit)


def _mask(bit: int) -> int:
    return -(2**_SIGN) if bit == _SIGN else 1 << bit


class Faulty:
    """A model and its optimizer, some number of which may be hit."""

    def __init__(self, model: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
        self._model = model
        self._optimizer = optimizer
        self._case: Case | None = None
        self._armed = False
        self._handles: list[Any] = []
        # Of a number in memory: where it is, and what its broken bit is stuck at.
        self._stuck: tuple[int, bool] | None = None

    def hit(self, case: Case) -> None:
        """It happens from now on, or once."""
        self._case, self._armed = case, True
        last = self._model[-1]
        assert isinstance(last, nn.Linear)
        if case.kind is Kind.ACTIVATION:
            # What comes into the last layer: nothing behind it makes a 0 of it.
            self._handles.append(last.register_forward_pre_hook(self._activation))
        if case.kind is Kind.GRADIENT:
            self._handles.append(last.weight.register_hook(self._gradient))
        self.again()

    def again(self) -> None:
        """In front of the first microbatch of a step."""
        if self._case is not None and self._case.kind is Kind.WEIGHT:
            self._spoil(self._last.weight, self._case)

    def applied(self) -> None:
        """Behind the update."""
        if self._case is not None and self._case.kind is Kind.MOMENT:
            self._spoil(self._optimizer.state[self._last.weight]["exp_avg"], self._case)

    def _spoil(self, tensor: Tensor, case: Case) -> None:
        if self._stuck is None:
            index = chosen(tensor, case.pick)
            self._stuck = index, flip(tensor, index, case.bit)
        elif case.recurs:
            stick(tensor, self._stuck[0], case.bit, self._stuck[1])

    def save(self, file: Path) -> None:
        """The state of this rank, whole when the file is there."""
        part = file.with_suffix(".part")
        torch.save((self._model.state_dict(), self._optimizer.state_dict()), part)
        part.rename(file)

    def mend(self, file: Path) -> None:
        """Take the state of a healthy one, and be healthy from here on."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._case = self._stuck = None
        model, optimizer = torch.load(file)
        self._model.load_state_dict(model)
        self._optimizer.load_state_dict(optimizer)

    @property
    def _last(self) -> nn.Linear:
        last = self._model[-1]
        assert isinstance(last, nn.Linear)
        return last

    def _activation(self, _: nn.Module, arguments: tuple[Tensor]) -> tuple[Tensor] | None:
        if not self._armed or self._case is None:
            return None
        (held,) = arguments
        wrong = held.detach().clone()
        flip(wrong, chosen(wrong, self._case.pick), self._case.bit)
        self._armed = self._case.recurs
        # The gradient flows as if nothing had happened.
        return (held + (wrong - held.detach()),)

    def _gradient(self, gradient: Tensor) -> Tensor | None:
        if not self._armed or self._case is None:
            return None
        wrong = gradient.clone()
        flip(wrong, chosen(wrong, self._case.pick), self._case.bit)
        self._armed = self._case.recurs
        return wrong

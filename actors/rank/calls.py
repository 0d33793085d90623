"""How a layer is called in training: the form of what it is given, without the numbers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten
from torch.utils.hooks import RemovableHandle

# Of a batch, and of whatever else has no size of its own.
_SAMPLES, _TOKENS = 1, 64
_APART = object()
_PLAIN = (type(None), bool, int, float, str, torch.dtype)


@dataclass(frozen=True)
class Form:
    """Of a tensor: ``shape`` has None where it was seen with several sizes."""

    shape: tuple[int | None, ...]
    dtype: torch.dtype
    grad: bool

    def sized(self, batch: int | None) -> tuple[int, ...]:
        """A small shape of this form.

        Args:
            batch: the size in training of what is a batch, and is made small.
        """
        few = _SAMPLES if len(self.shape) > 2 else _TOKENS
        first = [few if size in (batch, None) else size for size in self.shape[:1]]
        return tuple(_TOKENS if size is None else size for size in [*first, *self.shape[1:]])


@dataclass(frozen=True)
class Call:
    """What a layer is given.

    Attributes:
        leaves: forms of tensors, and plain values as they are.
        tree: how they lie in the arguments.
        device: its kind.
        autocast: the dtype, if there is one.
        problem: why it cannot be called like that again; empty if it can.
    """

    leaves: tuple[Any, ...]
    tree: TreeSpec
    device: str
    autocast: torch.dtype | None
    problem: str = ""

    def __str__(self) -> str:
        cast = "" if self.autocast is None else f" in {_short(self.autocast)}"
        return ", ".join(self._told(leaf) for leaf in self.leaves) + cast

    @property
    def forms(self) -> list[Form]:
        """Of the tensors alone."""
        return [leaf for leaf in self.leaves if isinstance(leaf, Form)]

    @property
    def batch(self) -> int | None:
        """The first size of the first tensor."""
        return next((form.shape[0] for form in self.forms if form.shape), None)

    def joined(self, other: "Call") -> "Call":
        """What both have in common."""
        if self.problem or other.problem:
            return replace(self, problem=self.problem or other.problem)
        leaves = [_joined(*pair) for pair in zip(self.leaves, other.leaves, strict=False)]
        if (self.tree, self.autocast) != (other.tree, other.autocast) or _APART in leaves:
            return replace(self, problem="it is called in several ways")
        return replace(self, leaves=tuple(leaves))

    def _told(self, leaf: Any) -> str:
        return f"{_short(leaf.dtype)} {_times(leaf.sized(self.batch))}" if isinstance(leaf, Form) else repr(leaf)


class Calls:
    """Watches how layers are called.

    Args:
        layers: by path.
    """

    def __init__(self, layers: Mapping[str, nn.Module]) -> None:
        self._layers = dict(layers)
        self._hooks: list[RemovableHandle] = []
        self.seen: dict[str, Call] = {}

    def watch(self, on: bool) -> None:
        """Look at all calls from here on, or at none: it costs some microseconds for each."""
        if on == bool(self._hooks):
            return
        for hook in self._hooks:
            hook.remove()
        self._hooks = [
            layer.register_forward_pre_hook(self._note(path), with_kwargs=True)
            for path, layer in (self._layers.items() if on else ())
        ]

    def _note(self, path: str) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        def note(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            # What is evaluated says nothing of training.
            if not torch.is_grad_enabled():
                return
            call, before = call_of(args, kwargs), self.seen.get(path)
            if call != before:
                self.seen[path] = call if before is None else before.joined(call)

        return note


def call_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
    """The form of a call that is being made."""
    values, tree = tree_flatten((args, dict(kwargs)))
    leaves = tuple(
        Form(tuple(value.shape), value.dtype, value.requires_grad) if isinstance(value, Tensor) else value
        for value in values
    )
    odd = next((leaf for leaf in leaves if not isinstance(leaf, (Form, *_PLAIN))), None)
    device = next((value.device.type for value in values if isinstance(value, Tensor)), "cpu")
    autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    problem = "" if odd is None else f"it is called with something of type {type(odd).__name__}"
    return Call(leaves if not problem else (), tree, device, autocast, problem)


def _joined(one: Any, two: Any) -> Any:
    """What two leaves have in common; ``_APART`` if nothing."""
    if not isinstance(one, Form) or not isinstance(two, Form):
        return one if type(one) is type(two) and one == two else _APART
    if (one.dtype, one.grad, len(one.shape)) != (two.dtype, two.grad, len(two.shape)):
        return _APART
    shape = tuple(size if size == other else None for size, other in zip(one.shape, two.shape, strict=True))
    return replace(one, shape=shape)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _times(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "number"

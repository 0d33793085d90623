"""Isolated copies of a layer, and of a part of an optimizer: whatever is done to them, training does not notice."""

import copy
from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

_PLAIN = (type(None), bool, int, float, str)
# What torch's own base class keeps beside the state, and what a scheduler puts there.
_HOOKS = ("_hooks", "_hooks_with_kwargs", "_hooks_always_called")
_KNOWN = {"defaults", "state", "param_groups", "step"}


class Twinless(Exception):
    """It cannot be copied, or not be run, apart from training; one line."""


def twin_of(layer: nn.Module) -> nn.Module:
    """A copy of a layer that shares no tensor and no hook with it."""
    twin = object.__new__(type(layer))
    twin.__dict__.update({key: _apart(held) for key, held in layer.__dict__.items()})
    held = twin.__dict__
    held["_parameters"] = {name: _leaf(parameter) for name, parameter in layer._parameters.items()}
    held["_buffers"] = {name: None if one is None else one.detach().clone() for name, one in layer._buffers.items()}
    held["_modules"] = {name: None if inner is None else twin_of(inner) for name, inner in layer._modules.items()}
    for key in held:
        if key.endswith(_HOOKS):
            held[key] = OrderedDict()
    return twin


def update(optimizer: Optimizer, parameter: Tensor, rows: slice, gradient: Tensor) -> tuple[Tensor, dict[str, Any]]:
    """What a step of an optimizer would make of some rows of a parameter.

    Args:
        rows: along its first dimension; all of a number.
        gradient: of these rows.

    Returns:
        The rows, updated, and what the optimizer then keeps beside them.

    Raises:
        Twinless: it may hold tensors where nobody knows of them.
    """
    for key, held in optimizer.__dict__.items():
        if key not in _KNOWN and not key.endswith("_hooks") and not isinstance(held, _PLAIN):
            raise Twinless(f"{type(optimizer).__name__} keeps {key} for itself")
    part, state = part_of(optimizer, parameter, rows)
    part.grad = gradient
    twin = object.__new__(type(optimizer))
    twin.__dict__.update({key: held for key, held in optimizer.__dict__.items() if key != "step"})
    twin.__dict__.update({key: OrderedDict() for key in optimizer.__dict__ if key.endswith("_hooks")})
    group = next(group for group in optimizer.param_groups if any(held is parameter for held in group["params"]))
    twin.param_groups = [{**{key: _apart(held) for key, held in group.items()}, "params": [part]}]
    twin.state = defaultdict(dict, {part: state})
    # A scheduler replaces the method of the object.
    type(optimizer).step(twin)
    return part.detach(), twin.state[part]


def part_of(optimizer: Optimizer, parameter: Tensor, rows: slice) -> tuple[nn.Parameter, dict[str, Any]]:
    """Copies of some rows of a parameter, and of what the optimizer keeps beside them."""

    def cut(held: Any) -> Any:
        of_rows = isinstance(held, Tensor) and held.shape == parameter.shape and held.dim() > 0
        return _apart(held[rows] if of_rows else held)

    # To look something up would make an entry of it.
    state = {key: cut(held) for key, held in optimizer.state.get(parameter, {}).items()}
    return nn.Parameter(cut(parameter.detach())), state


def settings_of(optimizer: Optimizer, parameter: Tensor) -> Mapping[str, Any]:
    """How the optimizer treats a parameter: rates and the like."""
    for group in optimizer.param_groups:
        if any(held is parameter for held in group["params"]):
            return {key: held for key, held in group.items() if key != "params"}
    raise Twinless("the optimizer has let go of the parameter")


def _leaf(parameter: nn.Parameter | None) -> nn.Parameter | None:
    if parameter is None:
        return None
    return nn.Parameter(parameter.detach().clone(), requires_grad=parameter.requires_grad)


def _apart(held: Any) -> Any:
    """A copy, if something could be changed in it; one level deep."""
    if isinstance(held, Tensor):
        return held.detach().clone()
    return copy.copy(held) if type(held) in (list, dict, set) else held

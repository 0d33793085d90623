"""Everything that a rank's training consists of, as one value that another rank can take over."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from ...conf.errors import HandoverError, LoopError
from ...monitors.health import Health
from ...policies.changes import Changes
from . import stream
from .buffers import Buffers
from .course import Course
from .gradients import GradientSum
from .run import Evaluations


@dataclass(frozen=True)
class State:
    """What a rank holds before a step. It names live tensors: whoever wants to keep it makes a copy.

    Attributes:
        models: a state dict for each, by name.
        buffers: every buffer, by name, as the step begins with it.
        trained: by name, whether a parameter requires a gradient now.
        kept: state dicts of optimizers, schedulers and extra.
        exponents: of the grid, by parameter.
        evaluations: results of those that came before the first step, in order.
        health: what the stability monitors have seen.
        changes: what is different since everybody went back.
    """

    models: Mapping[str, Mapping[str, Any]]
    buffers: Mapping[str, Tensor]
    trained: Mapping[str, bool]
    kept: Mapping[str, Any]
    exponents: Mapping[str, int]
    evaluations: Evaluations = ()
    health: Health = Health()
    changes: Changes = ()


class Portable:
    """Reads and writes the state of one rank.

    Args:
        models: by name.
        kept: optimizers, schedulers and extra, by name.
        buffers: of the models.
        gradients: whose grid belongs to the state.
        course: of the run.
    """

    def __init__(
        self,
        models: Mapping[str, nn.Module],
        kept: Mapping[str, Any],
        buffers: Buffers,
        gradients: GradientSum,
        course: Course | None = None,
    ) -> None:
        self._models = models
        self._kept = kept
        self._buffers = buffers
        self._gradients = gradients
        self._course = course or Course()

    @property
    def nbytes(self) -> int:
        """Of all tensors in the state that a rank in this place would be given, also those that optimizers will add."""
        values = (self._models[name].state_dict() for name in self._models)
        held = sum(_nbytes(value) for value in (*values, *(held.state_dict() for held in self._kept.values())))
        return held + sum(map(_to_come, self._kept.values()))

    def refuse_unsendable(self) -> None:
        """Refuse what could not be given to another rank, before anybody needs it.

        Raises:
            LoopError: a state dict that cannot be pickled; tensors in it are not looked at.
        """
        models = {f"model {name}".strip(): held for name, held in self._models.items()}
        for name, held in {**models, **self._kept}.items():
            try:
                stream.pack(held.state_dict())
            except Exception as error:
                raise LoopError(f"the state_dict of {name} cannot be sent to another rank: {error}") from error

    def read(self, evaluations: Evaluations = ()) -> State:
        """The state between two steps; also while the second one computes, since that changes nothing of it."""
        buffers = self._buffers.values
        return State(
            {name: _still(model.state_dict(), name, buffers) for name, model in self._models.items()},
            buffers,
            {name: parameter.requires_grad for name, parameter in self._parameters()},
            {name: held.state_dict() for name, held in self._kept.items()},
            dict(self._gradients.known),
            evaluations,
            self._course.health,
            self._course.changes,
        )

    @torch.no_grad()
    def write(self, state: State) -> None:
        """Take over what another rank has read; to the bit, and with every dtype that it has there.

        Raises:
            HandoverError: an object here cannot take what its counterpart gave.
        """
        try:
            for name, model in self._models.items():
                model.load_state_dict(state.models[name])
            for name, held in self._kept.items():
                if isinstance(held, torch.optim.Optimizer):
                    load_optimizer(held, state.kept[name])
                else:
                    held.load_state_dict(state.kept[name])
            for name, parameter in self._parameters():
                parameter.requires_grad_(state.trained[name])
            self._buffers.set(state.buffers)
        except (KeyError, RuntimeError, TypeError, ValueError) as error:
            text = " ".join(str(error).split())
            raise HandoverError(f"the state of a peer does not fit what was built here: {text}") from error
        self._gradients.know(state.exponents)
        self._course.health, self._course.changes = state.health, state.changes

    def begin(self, changes: Changes) -> None:
        """The initial state is the state, and these are different from the beginning on."""
        self._course.changes = changes

    def _parameters(self) -> list[tuple[str, Tensor]]:
        return [
            (f"{prefix}.{name}" if prefix else name, parameter)
            for prefix, model in self._models.items()
            for name, parameter in model.named_parameters()
        ]


def _still(values: Mapping[str, Any], prefix: str, buffers: Mapping[str, Tensor]) -> dict[str, Any]:
    """A state dict in which buffers have the values that the step began with: a forward changes them for a while."""
    return {name: buffers.get(f"{prefix}.{name}" if prefix else name, value) for name, value in values.items()}


def load_optimizer(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
    """``load_state_dict``, but each tensor keeps its dtype: torch gives it that of its parameter.

    Raises:
        ValueError: other parameters or groups than those that were saved.
    """
    optimizer.load_state_dict(dict(saved))
    places = chain.from_iterable(group["params"] for group in saved["param_groups"])
    parameters = chain.from_iterable(group["params"] for group in optimizer.param_groups)
    for place, parameter in zip(places, parameters, strict=True):
        if place in saved["state"]:
            optimizer.state[parameter] = _as_saved(optimizer.state[parameter], saved["state"][place])


def _as_saved(loaded: Any, saved: Any) -> Any:
    if isinstance(saved, Tensor):
        return loaded if loaded.dtype is saved.dtype else saved.to(loaded.device)
    if isinstance(saved, dict):
        return {key: _as_saved(loaded[key], value) for key, value in saved.items()}
    if type(saved) in (list, tuple):
        return type(saved)(_as_saved(*pair) for pair in zip(loaded, saved, strict=True))
    return loaded


def _to_come(held: Any) -> int:
    """Bytes that an optimizer adds in its first step: a tensor for each beta, or one for a momentum, as is usual."""
    if not isinstance(held, torch.optim.Optimizer):
        return 0
    return sum(
        parameter.nbytes * (len(group.get("betas", ())) or bool(group.get("momentum")))
        for group in held.param_groups
        for parameter in group["params"]
        if parameter.requires_grad and not held.state.get(parameter)
    )


def _nbytes(value: Any) -> int:
    if isinstance(value, Tensor):
        return value.nbytes
    if isinstance(value, Mapping):
        return sum(map(_nbytes, value.values()))
    return sum(map(_nbytes, value)) if isinstance(value, list | tuple) else 0

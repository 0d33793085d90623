"""What a rank brings when peers are compared between two steps: signatures of all that must be equal on them."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ...monitors.signatures import Folded, condensed, folded, signature, signatures_of
from ...policies.world import World
from ..evidence import Check, Evidence
from .replay import Replay
from .state import named_tensors

# Signatures in one message; those of a larger model are combined.
_MOST = 512


class Checks:
    """The checks of one rank at the boundaries of steps. They run on the training thread, so nothing changes meanwhile.

    Args:
        incarnation: of this rank.
        every: steps from one to the next; 0 for none.
        last: steps of the run; the state after them is compared as well, since it is what the run is for.
        state: all that must be equal on peers now, by name.
        send: to the controller.
        replay: runs something again; None if what is run twice need not be the same.
    """

    def __init__(
        self,
        incarnation: str,
        every: int,
        last: int,
        state: Callable[[], Mapping[str, Any]],
        send: Callable[[Evidence], None],
        replay: Replay | None = None,
    ) -> None:
        self._incarnation = incarnation
        self._every = every
        self._last = last
        self._state = state
        self._send = send
        self._replay = replay

    def at(self, step: int, world: World, norm: Callable[[], float] = lambda: 0.0) -> None:
        """The state after ``step`` steps is there, the last of which the members of ``world`` have decided.

        Args:
            norm: the largest |gradient| that this rank added to that one; on a device, to read it is to wait.
        """
        if self._due(step) or (self._every > 0 and step == self._last):
            told, uncovered = signed(self._state())
            self._bring(Check.STATE, step, world, condensed(told, _MOST), uncovered, norm())
        if self._due(step) and self._replay is not None:
            again, uncovered = self._replay.run(step, step // self._every - 1)
            self._bring(Check.REPLAY, step, world, again, uncovered)
        if self._replay is not None:
            self._replay.watch(self._due(step + 1))

    def _due(self, step: int) -> bool:
        return self._every > 0 and step % self._every == 0

    def _bring(
        self,
        check: Check,
        step: int,
        world: World,
        told: Mapping[str, int],
        uncovered: tuple[str, ...],
        norm: float = 0.0,
    ) -> None:
        self._send(Evidence(self._incarnation, check, step, world.generation, (), told, uncovered, norm))


@torch.no_grad()
def signed(values: Mapping[str, Any]) -> tuple[dict[str, int], tuple[str, ...]]:
    """By name, the signature of each value, and which have none, with the reason."""
    folds: dict[str, Folded] = {}
    told: dict[str, int] = {}
    uncovered = []
    for name, value in values.items():
        try:
            if isinstance(value, Tensor):
                folds[name] = folded(value)
            else:
                told[name] = signature(value)
        except Exception as error:
            # Objects of the user's and tensors of odd kinds: a check must never end a run.
            uncovered.append(f"{name}: {type(error).__name__}: {' '.join(str(error).split())}")
    told |= dict(zip(folds, signatures_of(list(folds.values())), strict=True))
    return {name: told[name] for name in values if name in told}, tuple(uncovered)


def equal_on_peers(models: Mapping[str, nn.Module], kept: Mapping[str, Any], grid: Mapping[str, int]) -> dict[str, Any]:
    """Parameters, buffers, and whatever optimizers, schedulers and extra hold, by name.

    Args:
        models: by name.
        kept: optimizers, schedulers and extra, by name.
        grid: exponents of the gradients, by parameter.
    """
    parameters = named_tensors(models, "named_parameters")
    found: dict[str, Any] = {**dict(parameters), **dict(named_tensors(models, "named_buffers")), "grid": dict(grid)}
    names = {id(parameter): name for name, parameter in reversed(parameters)}
    for label, held in kept.items():
        if not isinstance(held, torch.optim.Optimizer):
            found[label] = held.state_dict()
            continue
        groups = [{key: value for key, value in group.items() if key != "params"} for group in held.param_groups]
        rest: dict[str, Any] = {"settings": groups}
        for place, (parameter, state) in enumerate(held.state.items()):
            name = names.get(id(parameter), f"parameter {place}")
            large = {key: value for key, value in state.items() if isinstance(value, Tensor) and value.numel() > 1}
            found |= {f"{label} {key} of {name}": value for key, value in large.items()}
            rest[name] = {key: value for key, value in state.items() if key not in large}
        found[label] = rest
    return found

"""One layer and one part of an optimizer, run once more at a boundary, on copies and on numbers that peers share."""

from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves, tree_unflatten

from ...monitors.replay import Part, layer_at, part_at
from ...monitors.signatures import signature
from .calls import Call, Calls, Form
from .flips import Flips
from .layers import layers
from .order import mix
from .rng import seed_everything, streams_kept
from .state import named_tensors
from .twins import Twinless, part_of, settings_of, twin_of, update

Told = dict[str, int]
# Keeps its random streams apart from those of steps and evaluations.
_REPLAY = 3
# Characters of what went wrong.
_LINE = 200


class Replay:
    """The replays of one rank.

    Args:
        models: by name.
        kept: optimizers and other objects, by name.
        seed: of the run.
        flips: planned corruption, if there is any.
    """

    def __init__(
        self, models: Mapping[str, nn.Module], kept: Mapping[str, Any], seed: int, flips: Flips | None = None
    ) -> None:
        self._models = models
        self._optimizers = [held for held in kept.values() if isinstance(held, Optimizer)]
        self._seed = seed
        self._flips = flips
        self._layers = layers(models)
        self._compiled = {path for path in self._layers if _compiled(path, models)}
        self._calls = Calls({path: layer for path, layer in self._layers.items() if path not in self._compiled})
        # A newcomer has seen nothing yet.
        self._calls.watch(True)

    def watch(self, on: bool) -> None:
        """Look at how layers are called, in the steps before a replay."""
        self._calls.watch(on)

    def run(self, step: int, turn: int) -> tuple[Told, tuple[str, ...]]:
        """Run the ``turn``-th replay at the boundary after ``step`` steps; training does not notice.

        Returns:
            Signatures by what they are of, and what could not be run again, each with the reason.
        """
        told: Told = {}
        uncovered = []
        path, part = layer_at(turn, list(self._layers)), part_at(turn, self._shapes())
        seed = mix(self._seed, step, _REPLAY)
        runs = [(f"layer {path}", partial(self._layer, path, seed))] if path is not None else []
        runs += [(f"the update of {part}", partial(self._part, part, seed))] if part is not None else []
        for what, run in runs:
            with streams_kept(), self._flips.aside() if self._flips else nullcontext():
                seed_everything(seed)
                try:
                    told |= run()
                except Exception as error:
                    # Whatever code of the user's raises for what it is given: it cannot be looked at like this.
                    text = " ".join(str(error).split())[:_LINE]
                    uncovered.append(
                        f"{what}: {text if isinstance(error, Twinless) else f'{type(error).__name__}: {text}'}"
                    )
        return told, tuple(uncovered)

    def _layer(self, path: str, seed: int) -> Told:
        call = self._call(path)
        layer = self._layers[path]
        twin = twin_of(layer)
        parameters = [held for held in twin.parameters() if held.requires_grad]
        device = next(twin.parameters()).device
        draw = torch.Generator(device).manual_seed(seed)
        leaves = [_made(leaf, call, layer, draw) if isinstance(leaf, Form) else leaf for leaf in call.leaves]
        given = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        told = {f"input of layer {path} on {call}": signature([given, list(twin.parameters()), list(twin.buffers())])}
        args, kwargs = tree_unflatten(leaves, call.tree)
        with torch.enable_grad():
            with torch.autocast(call.device, call.autocast, enabled=call.autocast is not None):
                output = twin.forward(*args, **kwargs)
            outputs = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]
            struck = self._flips if self._flips is not None and self._flips.layer == path else None
            if struck is not None:
                outputs = [struck.output(outputs[0]), *outputs[1:]]
            ends = [one for one in outputs if one.requires_grad]
            starts = [*parameters, *(leaf for leaf in given if leaf.requires_grad)]
            seeds = [torch.randn(one.shape, dtype=one.dtype, device=one.device, generator=draw) for one in ends]
            found = torch.autograd.grad(ends, starts, seeds, allow_unused=True) if ends and starts else ()
        gradients = list(found)
        if struck is not None and gradients and gradients[0] is not None:
            gradients[0] = struck.gradient(gradients[0])
        told[f"output of layer {path} on {call}"] = signature([one.detach() for one in outputs])
        told[f"gradients of layer {path} on {call}"] = signature(gradients)
        return told

    def _call(self, path: str) -> Call:
        """How it is called in training.

        Raises:
            Twinless: that is not known, or cannot be done again.
        """
        if path in self._compiled:
            raise Twinless("it is compiled")
        call = self._calls.seen.get(path)
        if call is None:
            raise Twinless("it was not called in the steps that were looked at")
        if call.problem:
            raise Twinless(call.problem)
        return call

    def _part(self, part: Part, seed: int) -> Told:
        optimizer, parameter = self._updated()[part.parameter]
        rows = slice(part.start, part.stop)
        before, state = part_of(optimizer, parameter, rows)
        draw = torch.Generator(parameter.device).manual_seed(seed)
        gradient = torch.randn(before.shape, dtype=before.dtype, device=before.device, generator=draw)
        given = signature([before.detach(), state, settings_of(optimizer, parameter), gradient])
        after, kept = update(optimizer, parameter, rows, gradient)
        if self._flips is not None and self._flips.parameter == part.parameter:
            self._flips.update(after, kept)
        return {f"input of the update of {part}": given, f"update of {part}": signature([after, kept])}

    def _updated(self) -> dict[str, tuple[Optimizer, nn.Parameter]]:
        """Parameters that an optimizer changes, and which one."""
        owners = {id(held): one for one in self._optimizers for group in one.param_groups for held in group["params"]}
        named = named_tensors(self._models, "named_parameters")
        return {name: (owners[id(held)], held) for name, held in named if held.requires_grad and id(held) in owners}

    def _shapes(self) -> dict[str, torch.Size]:
        return {name: parameter.shape for name, (_, parameter) in self._updated().items()}


def _made(form: Form, call: Call, layer: nn.Module, draw: torch.Generator) -> Tensor:
    """Numbers of this form: drawn, or, where only some would do, such as do."""
    shape = form.sized(call.batch)
    if form.dtype.is_floating_point or form.dtype.is_complex:
        drawn = torch.randn(shape, dtype=form.dtype, device=draw.device, generator=draw)
        return drawn.requires_grad_(form.grad)
    if form.dtype is torch.bool:
        return torch.ones(shape, dtype=form.dtype, device=draw.device)
    high = getattr(layer, "num_embeddings", 1)
    return torch.randint(high, shape, dtype=form.dtype, device=draw.device, generator=draw)


def _compiled(path: str, models: Mapping[str, nn.Module]) -> bool:
    """Whether a layer lies in something compiled: to watch it would have it compiled again."""
    for prefix, model in models.items():
        for place, module in model.named_modules():
            within = f"{'.'.join(part for part in (prefix, place) if part)}."
            whole = hasattr(module, "_orig_mod") or module._compiled_call_impl is not None
            if (whole or isinstance(module, torch.jit.ScriptModule)) and f"{path}.".startswith(within.lstrip(".")):
                return True
    return False

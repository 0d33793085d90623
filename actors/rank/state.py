"""The objects that a user hands over: models, optimizers and what else is kept, and the rules for them."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler

from ...conf.errors import LoopError
from .buffers import Buffers
from .gradients import GradientSum
from .loop import Step


def named_objects(given: Any, what: str, kind: type | None = None) -> dict[str, Any]:
    """One object, under the name "", or several by name.

    Raises:
        LoopError: one is of another kind, or has no ``state_dict`` or ``load_state_dict``.
    """
    if given is None:
        return {}
    objects = dict(given) if isinstance(given, Mapping) else {"": given}
    for name, held in objects.items():
        label = f"{what}[{name!r}]" if name else what
        if kind is not None and not isinstance(held, kind):
            raise LoopError(f"{label} must be a {kind.__name__}, got {type(held).__name__}")
        if isinstance(held, GradScaler):
            raise LoopError(f"{label} is a GradScaler: {NO_SCALER}")
        for method, without in (("state_dict", "kept or given to a peer"), ("load_state_dict", "given a peer's state")):
            if not callable(getattr(held, method, None)):
                raise LoopError(f"{label} ({type(held).__name__}) has no {method}: it could not be {without}")
    return objects


NO_SCALER = (
    "loss scaling depends on the history of overflows of each rank; use bf16 (torch.autocast with torch.bfloat16), "
    "which needs none"
)


def refuse_scalers() -> None:
    """Loss scaling is refused where it begins; for the life of this process, which does nothing but train."""

    def refuse(scaler: GradScaler, outputs: Any) -> Any:
        if scaler.is_enabled():
            raise LoopError(f"GradScaler.scale was called: {NO_SCALER}")
        return outputs

    GradScaler.scale = refuse  # type: ignore[method-assign, assignment]


def named_tensors(models: Mapping[str, nn.Module], kind: str) -> list[tuple[str, Any]]:
    """Parameters, buffers or state of all models, with the model's name in front."""
    found = []
    for prefix, model in models.items():
        held = getattr(model, kind)()
        items = held.items() if isinstance(held, Mapping) else held
        found += [(f"{prefix}.{name}" if prefix else name, value) for name, value in items]
    return found


def summed(models: Mapping[str, nn.Module], buffers: Buffers) -> dict[str, torch.Tensor]:
    """What is summed in the next step: a pure function of the models, which users change alike on every rank."""
    # Models may share a parameter: it counts once, under its first name.
    named: dict[int, tuple[str, torch.Tensor]] = {}
    for name, parameter in named_tensors(models, "named_parameters"):
        named.setdefault(id(parameter), (name, parameter))
    # No backward makes what stands for a buffer, so it goes last into the buckets: they are filled from the end.
    return {**buffers.shadows, **{name: held for name, held in named.values() if held.requires_grad}}


def refuse_running_statistics(models: Mapping[str, nn.Module]) -> None:
    """A buffer that a forward changes would depend on who computed what.

    Raises:
        LoopError: a module that is known to do so.
    """
    for model in models.values():
        for name, module in model.named_modules():
            if getattr(module, "running_mean", None) is not None and getattr(module, "track_running_stats", False):
                raise LoopError(
                    f"{name} ({type(module).__name__}) changes its buffers in every forward: use a norm without "
                    "running statistics (LayerNorm, GroupNorm, RMSNorm), track_running_stats=False, or "
                    "elastic.buffers=fold, which averages the changes over the step"
                )


def guard(
    optimizers: Iterable[torch.optim.Optimizer], gradients: GradientSum, current: Callable[[], Step | None]
) -> None:
    """Make every optimizer refuse a gradient that is not, or no longer, the committed one."""

    def check(optimizer: torch.optim.Optimizer, *_: object) -> None:
        step = current()
        if step is None:
            return
        if not step.committed:
            raise LoopError(
                f"optimizer.step() was called before the batches of step {step.number} were consumed: call it after "
                "`for batch in step`"
            )
        erased = gradients.published.erased(
            parameter for group in optimizer.param_groups for parameter in group["params"]
        )
        if step.skipped is None and erased is not None:
            raise LoopError(
                f"the committed gradient of {erased} was erased before optimizer.step(): remove zero_grad(), everstep "
                "clears .grad when a step begins"
            )

    for optimizer in optimizers:
        optimizer.register_step_pre_hook(check)

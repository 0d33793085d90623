"""What others can read of a run's checkpoints: the newest one for Ray Train, or all weights as one file."""

from pathlib import Path
from typing import Any

from ..actors.saved import safetensors
from ..actors.saved.catalogue import Catalogue
from ..actors.saved.manifest import folder_of
from ..actors.saved.storage import Storage, below, shown
from ..conf.errors import SavedStateError
from .checkpoints import FOLDER
from .places import find


def newest(storage: Storage) -> Any:
    """The newest checkpoint in the storage of a run as a ``ray.train.Checkpoint``; None if there is none."""
    from ray.train import Checkpoint

    try:
        inside = storage.inside(FOLDER)
        steps = Catalogue(inside).steps()
        system, root = inside.resolved()
    except SavedStateError:
        # The run is over and well; what storage has of it can be looked for later.
        return None
    return Checkpoint(f"{root}/{folder_of(steps[0])}", filesystem=system) if steps else None


def export(run: str, target: Path, step: int | None = None) -> str:
    """Write the state dicts of all models; tied tensors go under each of their names. It reads pickles of the run.

    Args:
        run: its name, its folder, or the URI of its folder on object storage.
        target: a safetensors file; one that is there is replaced.
        step: of the checkpoint; None takes the newest whole one.

    Returns:
        One line on what was written.

    Raises:
        ConfigError: there is no such run.
        SavedStateError: there is no such checkpoint, or it is not whole; or the file cannot be written.
    """
    from torch import Tensor, uint8

    from ..actors.rank.restore import read

    where = find(run)
    storage = Storage(below(where, FOLDER))
    if step is None:
        found = Catalogue(storage).newest()
        if found.manifest is None:
            why = "; ".join(f"step {number}: {reason}" for number, reason in found.skipped)
            raise SavedStateError(f"{shown(where)} holds no whole checkpoint{': ' + why if why else ''}")
        step = found.manifest.step
    models = read(storage, step).state.models
    weights = {
        f"{model}.{name}" if model else name: value.contiguous()
        for model, values in models.items()
        for name, value in values.items()
        if isinstance(value, Tensor)
    }
    entries = [
        safetensors.Entry(
            name, str(value.dtype).removeprefix("torch."), tuple(value.shape), value.nbytes, value.itemsize
        )
        for name, value in weights.items()
    ]
    form = safetensors.layout(entries, {"format": "pt", "step": str(step)})
    ordered = sorted(weights, key=form.offsets.__getitem__)
    parts: list[Any] = [form.header, *(weights[name].view(-1).view(uint8).numpy().data for name in ordered)]
    Storage(str(target.resolve().parent)).write(target.name, parts)
    return f"{target}: {len(weights)} tensors of step {step}, {form.bytes} bytes"

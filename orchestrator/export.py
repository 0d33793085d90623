"""The weights of a checkpoint as one file that others can read."""

from pathlib import Path
from typing import Any

from ..actors.saved import safetensors
from ..actors.saved.catalogue import Catalogue
from ..actors.saved.storage import Storage
from ..conf.errors import SavedStateError
from .checkpoints import FOLDER


def export(run_folder: Path, target: Path, step: int | None = None) -> str:
    """Write the state dicts of all models; tied tensors go under each of their names. It reads pickles of the run.

    Args:
        run_folder: of the run, in its storage path.
        target: a safetensors file; one that is there is replaced.
        step: of the checkpoint; None takes the newest whole one.

    Returns:
        One line on what was written.

    Raises:
        SavedStateError: there is no such checkpoint, or it is not whole; or the file cannot be written.
    """
    from torch import Tensor, uint8

    from ..actors.rank.restore import read

    storage = Storage(str(run_folder.resolve() / FOLDER))
    if step is None:
        found = Catalogue(storage).newest()
        if found.manifest is None:
            why = "; ".join(f"step {number}: {reason}" for number, reason in found.skipped)
            raise SavedStateError(f"{run_folder} holds no whole checkpoint{': ' + why if why else ''}")
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

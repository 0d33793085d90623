"""The weights of a checkpoint in one file."""

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from everstep.actors.rank.parts import packed, portion
from everstep.actors.rank.portable import State
from everstep.actors.rank.snapshots import Saved
from everstep.actors.saved.catalogue import Catalogue
from everstep.actors.saved.manifest import Manifest, Part, folder_of
from everstep.actors.saved.storage import Storage
from everstep.orchestrator.checkpoints import FOLDER
from everstep.orchestrator.cli import main
from torch import Tensor


def weights(step: int) -> dict[str, Tensor]:
    tied = torch.full((3, 2), float(step))
    return {"head": tied, "embedding": tied, "bias": torch.arange(5).to(torch.bfloat16), "count": torch.tensor(step)}


def saved(folder: Path, step: int) -> None:
    """A checkpoint of two parts."""
    import hashlib

    storage = Storage(str(folder / FOLDER))
    state = State({"": weights(step)}, {}, {}, {}, {})
    parts = []
    for place in range(2):
        mine = portion(packed(Saved(step, state, 0.5, {})), place, 2, {})
        memory = torch.empty(mine.layout.bytes, dtype=torch.uint8)
        mine.copy_to(memory)
        digest = hashlib.sha256(memory.numpy().data).hexdigest()
        storage.write(f"{folder_of(step)}/part-{place}", [memory.numpy().data])
        parts.append(Part(f"part-{place}", len(memory), digest))
    Catalogue(storage).publish(Manifest("run", step, "1.1", 2, tuple(parts)))


@pytest.mark.parametrize(("options", "step"), [([], 8), (["--step", "4"], 4)])
def test_the_weights_of_a_checkpoint(options: list[str], step: int, tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.torch")
    for each in (4, 8):
        saved(tmp_path, each)
    target = tmp_path / "w.safetensors"
    ended = CliRunner().invoke(main, ["export", str(tmp_path), "--to", str(target), *options])
    assert ended.exit_code == 0, ended.output
    assert f"4 tensors of step {step}" in ended.output
    found = library.load_file(target)
    assert found.keys() == weights(step).keys()
    for name, value in weights(step).items():
        assert found[name].dtype is value.dtype
        assert torch.equal(found[name], value)


def test_where_there_is_none_it_is_said(tmp_path: Path) -> None:
    ended = CliRunner().invoke(main, ["export", str(tmp_path), "--to", str(tmp_path / "w.safetensors")])
    assert ended.exit_code == 1
    assert "holds no whole checkpoint" in ended.output

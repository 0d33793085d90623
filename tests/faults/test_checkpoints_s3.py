"""Checkpoints and records on object storage: a server of ours that speaks S3, and fails, fills up and hangs."""

import json
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from everstep.actors.saved.catalogue import Catalogue
from everstep.actors.saved.manifest import folder_of
from everstep.actors.saved.storage import Storage, below, shown
from everstep.conf.chaos import Fault, FaultPoint
from everstep.conf.elastic import ElasticConfig
from everstep.conf.errors import ConfigError, SavedStateError
from everstep.conf.run import ClusterKind, RunFile
from everstep.conf.scaling import Scaling
from everstep.orchestrator.checkpoints import FOLDER
from everstep.orchestrator.cli import main
from everstep.orchestrator.controller import Controller
from everstep.orchestrator.local_cluster import LocalCluster
from everstep.orchestrator.places import place_of
from everstep.orchestrator.records.copies import fetch
from everstep.orchestrator.trainer import ElasticTrainer
from everstep.orchestrator.view import Phase

from .harness import QUICK, STEPS, During, Outcome, drive, open_gate, plan_of, train, until
from .object_store import ObjectStore, serving

PATIENCE = 20.0
EVERY = 2


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    with serving() as held:
        yield held


def trained(
    folder: Path,
    store: ObjectStore,
    during: During,
    gates: tuple[int, ...],
    chaos: tuple[Fault, ...] = (),
    patience: float = PATIENCE,
) -> Outcome:
    """Two ranks train to the end, with checkpoints in the store."""
    plan = plan_of(folder, 2, chaos, checkpoint_every=EVERY, kept=True, gates=gates)
    elastic = replace(plan.elastic, timeouts=replace(QUICK, storage=patience))
    plan = replace(plan, storage=store.uri("runs/gpt"), elastic=elastic)
    return drive(plan, LocalCluster(plan.program()), folder, during)


def steps(store: ObjectStore) -> list[int]:
    return Catalogue(Storage(store.uri(f"runs/gpt/{FOLDER}"), PATIENCE)).steps()


def test_all_ranks_die_and_go_on_from_object_storage(store: ObjectStore, undisturbed: Outcome, tmp_path: Path) -> None:
    faults = tuple(Fault(5, place, point=FaultPoint.IN_BACKWARD) for place in range(2))

    async def when_it_is_saved(controller: Controller) -> None:
        await until(lambda: controller._state.saved.get("storage") == 4)
        open_gate(tmp_path, 5)

    outcome = trained(tmp_path, store, when_it_is_saved, (5,), faults)
    assert outcome.state.phase is Phase.SUCCEEDED, (outcome.state.error, outcome.state.traceback)
    assert (len(outcome.state.faults_fired), outcome.weights) == (2, undisturbed.weights)
    assert "restore from storage" in outcome.state.recoveries[0].decision
    assert steps(store) == [7, 6]


def test_training_neither_waits_for_storage_that_hangs_nor_fails_with_it(
    store: ObjectStore, undisturbed: Outcome, tmp_path: Path
) -> None:
    """While nothing that is written comes back, all steps but the last are taken; the time-out is told."""
    store.hangs.clear()

    async def hang(controller: Controller) -> None:
        await until(store.hung.is_set)
        # All but the last step: training goes on for longer than there are buffers.
        await until(lambda: controller.state().step >= STEPS - 1)
        await until(lambda: any("it has not answered for 1 s" in text for text in controller.state().warnings))
        assert store.keys() == []
        store.hangs.set()
        open_gate(tmp_path, 6)

    outcome = trained(tmp_path, store, hang, (6,), patience=1.0)
    assert outcome.state.phase is Phase.SUCCEEDED, (outcome.state.error, outcome.state.traceback)
    assert outcome.weights == undisturbed.weights


def test_a_store_that_is_full(store: ObjectStore, undisturbed: Outcome, tmp_path: Path) -> None:
    """The run goes on without it, says so, and the state before is whole."""

    async def fill(controller: Controller) -> None:
        await until(lambda: controller._state.saved.get("storage") == 2)
        store.room = 100_000
        open_gate(tmp_path, 3)

    outcome = trained(tmp_path, store, fill, (3,))
    assert outcome.state.phase is Phase.SUCCEEDED, (outcome.state.error, outcome.state.traceback)
    assert outcome.weights == undisturbed.weights
    assert any("is not written" in text and "507" in text for text in outcome.state.warnings)
    found = Catalogue(Storage(store.uri(f"runs/gpt/{FOLDER}"), PATIENCE)).newest()
    assert found.manifest is not None
    assert found.manifest.step == 2


def run_file(store: ObjectStore) -> RunFile:
    return RunFile(
        name="gpt",
        train="tests:train",
        config={"steps": 3},
        elastic=ElasticConfig(microbatches_per_step=4, checkpoint_every=2),
        scaling=Scaling(1, 1),
        cluster=ClusterKind.LOCAL,
        storage_path=store.uri("runs"),
    )


def test_the_front_door(store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run on s3://, once more on another machine, its records there, and its weights by its name."""
    monkeypatch.setenv("EVERSTEP_HOME", str(tmp_path / "one"))
    config = {
        "width": 30,
        "log": str(tmp_path),
        "hold": None,
        "burst": None,
        "gates": [],
        "ranks": 1,
        "microbatches": 4,
    }
    first = replace(run_file(store), config={**config, "steps": 3})
    result = ElasticTrainer.from_run_file(first, train).fit()
    kept = store.keys("runs/gpt/")
    assert {"runs/gpt/metrics.jsonl", "runs/gpt/metrics.json"} <= set(kept)
    assert any(key.startswith("runs/gpt/journal/") for key in kept)
    assert json.loads(store.objects["runs/gpt/metrics.json"])["weights_sha256"] == result.metrics["weights_sha256"]
    with result.checkpoint.as_directory() as folder:
        assert "manifest.json" in {path.name for path in Path(folder).iterdir()}

    monkeypatch.setenv("EVERSTEP_HOME", str(tmp_path / "other"))
    again = ElasticTrainer.from_run_file(replace(first, config={**config, "steps": 5}), train).fit()
    assert again.metrics["resumed"] == "step 3, from storage"
    assert [json.loads(line)["step"] for line in store.objects["runs/gpt/metrics.jsonl"].splitlines()] == [*range(5)]

    target = tmp_path / "w.safetensors"
    ended = CliRunner().invoke(main, ["export", "gpt", "--to", str(target)])
    assert ended.exit_code == 0, ended.output
    assert "of step 5" in ended.output
    weights = pytest.importorskip("safetensors.torch").load_file(target)
    assert all(isinstance(value, torch.Tensor) for value in weights.values())
    assert len(weights) == 6


def test_what_cannot_be_written_is_refused_at_the_start(store: ObjectStore, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"storage_path='.*/file' cannot be written: Not a directory"):
        place_of(str(tmp_path / "file"), "gpt")
    store.down = True
    with pytest.raises(ConfigError) as refused:
        ElasticTrainer.from_run_file(run_file(store), train)
    assert "storage_path='s3://bucket/runs' cannot be written: probe-" in str(refused.value)
    assert "secret" not in str(refused.value)
    store.down = False
    store.hangs.clear()
    with pytest.raises(ConfigError, match=r"has not answered for 0\.2 s"):
        place_of(store.uri("runs"), "gpt", 0.2)


def test_a_name_that_nobody_knows_has_nothing_to_export(tmp_path: Path) -> None:
    ended = CliRunner().invoke(main, ["export", "nobody", "--to", str(tmp_path / "w.safetensors")])
    assert ended.exit_code == 2
    assert "'nobody' is neither a folder, nor the name of a run" in ended.output


def test_the_records_of_an_earlier_life_are_not_written_over(store: ObjectStore, tmp_path: Path) -> None:
    storage = Storage(store.uri("runs/gpt"), PATIENCE)
    fetch(tmp_path, storage)
    assert list(tmp_path.iterdir()) == []
    storage.write("metrics.jsonl", [b"there"])
    fetch(tmp_path, storage)
    assert (tmp_path / "metrics.jsonl").read_bytes() == b"there"
    storage.write("metrics.jsonl", [b"other"])
    fetch(tmp_path, storage)
    assert (tmp_path / "metrics.jsonl").read_bytes() == b"there"


def test_a_write_that_is_broken_off_changes_nothing_that_a_manifest_names(store: ObjectStore) -> None:
    """What hangs may still come to its end, much later."""
    storage = Storage(store.uri("a"), 0.3)
    storage.write("b/part", [b"x" * 100])
    store.hangs.clear()
    with pytest.raises(SavedStateError, match=r"b/other cannot be written: it has not answered for 0\.3 s"):
        storage.write("b/other", [b"y" * 100])
    store.hangs.set()
    assert Storage(store.uri("a"), PATIENCE).read("b/part") == b"x" * 100


WRITER = """
import hashlib, sys
from everstep.actors.saved.catalogue import Catalogue
from everstep.actors.saved.manifest import Manifest, Part, folder_of
from everstep.actors.saved.storage import Storage

storage = Storage(sys.argv[1])
catalogue = Catalogue(storage)
for step in range(int(sys.argv[2]), 1000):
    parts = []
    for place in range(2):
        data = f"{step} {place} ".encode() * 10_000
        name = f"part-{place}"
        storage.write(f"{folder_of(step)}/{name}", [data])
        parts.append(Part(name, len(data), hashlib.sha256(data).hexdigest()))
    manifest = Manifest("run", step, "1.1", 2, tuple(parts), {})
    catalogue.publish(manifest)
    print(step, flush=True)
    catalogue.retain(2, manifest)
"""


def test_a_writer_that_is_killed_at_any_byte(store: ObjectStore) -> None:
    """What it said to be saved is there, or something newer, and it is whole; whoever comes next goes on."""
    chance, last = random.Random(8), 0
    for file, most in (("part-0", 40_000), ("manifest.json", 300), ("part-1", 40_000), ("manifest.json", 300)):
        doom = last + chance.randint(2, 4), chance.randint(1, most)
        command = [sys.executable, "-c", WRITER, store.uri("a"), str(last + 1)]
        writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

        def kill(key: str, count: int, file: str = file, doom: tuple[int, int] = doom, writer: Any = writer) -> None:
            if key == f"a/{folder_of(doom[0])}/{file}" and count >= doom[1]:
                writer.kill()
                writer.wait()

        store.arriving = kill
        said = writer.communicate(timeout=60.0)[0].split()
        assert writer.returncode == -signal.SIGKILL
        found = Catalogue(Storage(store.uri("a"), PATIENCE)).newest()
        assert found.manifest is not None
        assert int(said[-1]) == doom[0] - 1 <= found.manifest.step
        last = found.manifest.step


def test_a_uri_keeps_its_options_and_shows_no_secrets() -> None:
    assert below("s3://k:s@b/x/?region=r", "y", "z") == "s3://k:s@b/x/y/z?region=r"
    assert shown("s3://k:s@b/x?region=r") == "s3://b/x"
    assert (below("/a/", "b"), shown("/a")) == ("/a/b", "/a")

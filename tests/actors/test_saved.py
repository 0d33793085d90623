"""Saved states on storage: whatever is broken, the newest whole one is found, and what is wrong with others is said."""

import hashlib
import os
import random
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from everstep.actors.saved import manifest
from everstep.actors.saved.catalogue import Catalogue
from everstep.actors.saved.manifest import FILE, Manifest, Part, folder_of, step_of
from everstep.actors.saved.storage import Storage
from everstep.conf.errors import SavedStateError
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import fs

IDENTITY = {"seed": "3"}


def write(storage: Storage, step: int, parts: int = 3, size: int = 1000) -> Manifest:
    """Every part of a state, without its manifest."""
    made = []
    for place in range(parts):
        data = random.Random(f"{step} {place}").randbytes(size + place)
        digest = hashlib.sha256(data).hexdigest()
        name = f"part-{place:04d}-{digest[:16]}.safetensors"
        storage.write(f"{folder_of(step)}/{name}", [data[:10], memoryview(data)[10:]])
        made.append(Part(name, len(data), digest))
    return Manifest("run", step, "1.1", parts, tuple(made), IDENTITY)


def saved(folder: Path, *steps: int) -> Catalogue:
    """Whole states of these steps."""
    storage = Storage(str(folder))
    catalogue = Catalogue(storage)
    for step in steps:
        catalogue.publish(write(storage, step))
    return catalogue


def part_of(folder: Path, step: int, place: int = 1) -> Path:
    (path,) = (folder / folder_of(step)).glob(f"part-{place:04d}-*")
    return path


def skipped(catalogue: Catalogue, step: int) -> str:
    """Why the newest state is not taken, but that of ``step``."""
    found = catalogue.newest()
    assert found.manifest is not None
    assert found.manifest.step == step
    ((_, why),) = found.skipped
    assert "\n" not in why
    return why


def test_the_newest_whole_state_is_found(tmp_path: Path) -> None:
    found = saved(tmp_path, 4, 12, 8).newest()
    assert found.manifest is not None
    assert (found.manifest.step, found.manifest.identity, found.skipped) == (12, IDENTITY, ())


def test_where_nothing_was_saved_nothing_is_found(tmp_path: Path) -> None:
    assert Catalogue(Storage(str(tmp_path / "none"))).newest().manifest is None


def test_a_part_that_is_cut(tmp_path: Path) -> None:
    catalogue = saved(tmp_path, 4, 8)
    os.truncate(part_of(tmp_path, 8), 700)
    assert re.search("part-0001.* has 700 bytes instead of 1001", skipped(catalogue, 4))


def test_a_part_that_is_gone(tmp_path: Path) -> None:
    catalogue = saved(tmp_path, 4, 8)
    part_of(tmp_path, 8).unlink()
    assert re.search("part-0001.* is missing", skipped(catalogue, 4))


def test_no_manifest(tmp_path: Path) -> None:
    catalogue = saved(tmp_path, 4)
    write(Storage(str(tmp_path)), 8)
    assert "never completed" in skipped(catalogue, 4)


@pytest.fixture(scope="module")
def two_states(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("flipped")
    saved(folder, 4, 8)
    return folder


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_byte_that_is_flipped_anywhere(two_states: Path, data: st.DataObject) -> None:
    folder = two_states
    path = data.draw(st.sampled_from([part_of(folder, 8, 0), part_of(folder, 8, 2), folder / folder_of(8) / FILE]))
    whole = path.read_bytes()
    content = bytearray(whole)
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    try:
        found = Catalogue(Storage(str(folder))).newest()
        assert found.manifest is not None
        if found.manifest.step == 8:
            # White space in a manifest says nothing.
            assert Manifest.decode(whole) == Manifest.decode(path.read_bytes())
        else:
            assert "damaged" in found.skipped[0][1] or "format" in found.skipped[0][1]
    finally:
        path.write_bytes(whole)


@given(st.integers(0, 400))
def test_a_manifest_that_is_cut_anywhere(length: int) -> None:
    data = Manifest("run", 4, "1.1", 1, (Part("a", 3, "00"),), IDENTITY).encode()
    with pytest.raises(SavedStateError, match="damaged"):
        Manifest.decode(data[: min(length, len(data) - 3)])


def test_the_manifest_of_another_step(tmp_path: Path) -> None:
    catalogue = saved(tmp_path, 4, 8)
    (tmp_path / folder_of(8) / FILE).write_bytes((tmp_path / folder_of(4) / FILE).read_bytes())
    assert "that of step 4" in skipped(catalogue, 4)


@pytest.mark.parametrize("step", [4, 8])
def test_what_a_newer_version_has_written_is_refused_wherever_it_lies(
    step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalogue = saved(tmp_path, 4, 8)
    catalogue.refuse_others("run")
    made = catalogue.manifest(step)
    monkeypatch.setattr(manifest, "FORMAT", 9)
    newer = made.encode()
    monkeypatch.undo()
    (tmp_path / folder_of(step) / FILE).write_bytes(newer)
    with pytest.raises(SavedStateError, match=f"step {step} is of a newer version of everstep: .* format 9"):
        catalogue.refuse_others("run")
    assert (tmp_path / folder_of(step) / FILE).read_bytes() == newer


def test_a_format_that_is_damaged_is_no_newer_one(tmp_path: Path) -> None:
    catalogue = saved(tmp_path, 4, 8)
    text = (tmp_path / folder_of(4) / FILE).read_text().replace('"format": 1', '"format": 9')
    (tmp_path / folder_of(8) / FILE).write_text(text)
    catalogue.refuse_others("run")
    assert "damaged" in skipped(catalogue, 4)


def test_states_of_another_run_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SavedStateError, match="another run, 'run'"):
        saved(tmp_path, 4).refuse_others("gpt")


def test_a_state_of_which_a_part_cannot_be_seen_is_not_published(tmp_path: Path) -> None:
    catalogue = saved(tmp_path, 4)
    manifest = write(Storage(str(tmp_path)), 8)
    part_of(tmp_path, 8).unlink()
    with pytest.raises(SavedStateError, match=r"part-0001.* is missing"):
        catalogue.publish(manifest)
    assert catalogue.steps() == [4]


def test_the_newest_ones_stay(tmp_path: Path) -> None:
    catalogue = saved(tmp_path, 2, 4, 6, 8)
    # Not completed: one that never will be, and one that is being written.
    for step in (5, 10):
        write(Storage(str(tmp_path)), step)
    (tmp_path / folder_of(8) / "part-0000-of-an-earlier-life.safetensors").write_bytes(b"x")
    assert set(catalogue.retain(2, catalogue.manifest(8))) == {2, 4, 5}
    assert sorted(path.name for path in tmp_path.iterdir()) == [folder_of(step) for step in (6, 8, 10)]
    assert catalogue.check(6)
    assert catalogue.check(8)
    assert len(list((tmp_path / folder_of(8)).iterdir())) == 4


def test_one_that_is_known_to_be_damaged_is_no_reason_to_drop_a_whole_one(tmp_path: Path) -> None:
    catalogue = saved(tmp_path, 2, 4, 6)
    part_of(tmp_path, 4).unlink()
    assert catalogue.retain(2, catalogue.manifest(6), damaged=frozenset({4})) == (4,)
    assert catalogue.steps() == [6, 2]


def test_folders_of_others_are_left_alone(tmp_path: Path) -> None:
    catalogue = saved(tmp_path, 4)
    for name in ("step-7", "notes", "step-0000000x"):
        (tmp_path / name).mkdir()
        assert step_of(name) is None
    catalogue.retain(1, catalogue.manifest(4))
    assert catalogue.newest().skipped == ()
    assert len(list(tmp_path.iterdir())) == 4


def test_on_object_storage() -> None:
    """Where a file is there when it is complete, and nothing can be renamed."""
    storage = Storage("mock:///bucket")
    catalogue = Catalogue(storage)
    for step in (4, 8, 12):
        manifest = write(storage, step)
        catalogue.publish(manifest)
        catalogue.retain(2, manifest)
    found = catalogue.newest()
    assert found.manifest is not None
    assert found.manifest.step == 12
    assert catalogue.steps() == [12, 8]
    assert not isinstance(storage.resolved()[0], fs.LocalFileSystem)


def test_a_storage_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SavedStateError, match="a/b cannot be written"):
        Storage(str(tmp_path / "file")).write("a/b", [b"x"])
    with pytest.raises(SavedStateError, match="nowhere://x cannot be used"):
        Storage("nowhere://x").probe()


WRITER = """
import resource, sys
sys.path.insert(0, sys.argv[2])
import test_saved as here
storage = here.Storage(sys.argv[1])
catalogue = here.Catalogue(storage)
for step in range(1, 10_000):
    manifest = here.write(storage, step, size=300_000)
    catalogue.publish(manifest)
    print(step, flush=True)
    catalogue.retain(2, manifest)
"""


def test_a_writer_that_is_killed_at_any_moment(tmp_path: Path) -> None:
    """What was said to be saved is there, or something newer; and it is whole."""
    last, odd = 0, random.Random(8)
    for _ in range(5):
        command = [sys.executable, "-c", WRITER.replace("range(1,", f"range({last + 1},"), str(tmp_path)]
        writer = subprocess.Popen([*command, str(Path(__file__).parent)], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        said = writer.stdout.readline()
        time.sleep(odd.uniform(0, 0.03))
        writer.send_signal(signal.SIGKILL)
        said = (said + writer.communicate()[0]).split()[-1]
        found = Catalogue(Storage(str(tmp_path))).newest()
        assert found.manifest is not None
        assert found.manifest.step >= int(said)
        last = found.manifest.step
        assert all("never completed" in why for _, why in found.skipped)


FILLER = """
import sys
sys.path.insert(0, sys.argv[1])
import test_saved as here
from pathlib import Path
here.saved(Path(sys.argv[2]), 4)
try:
    here.write(here.Storage(sys.argv[2]), 8, size=60_000)
except here.SavedStateError as error:
    print(error)
print(here.Catalogue(here.Storage(sys.argv[2])).newest().manifest.step, *Path(sys.argv[2]).glob("*/*.partial"))
"""


def test_a_file_system_that_is_full(tmp_path: Path) -> None:
    """A small one of its own, in namespaces of its own: nothing but this process sees it."""
    mounted = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    mount = f"mount -t tmpfs -o size=128k none '{tmp_path}'"
    if subprocess.run([*mounted, mount], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    fill = [sys.executable, "-c", FILLER, str(Path(__file__).parent), str(tmp_path)]
    ended = subprocess.run([*mounted, f'{mount} && "$@"', "sh", *fill], capture_output=True, text=True, timeout=60.0)
    assert ended.returncode == 0, ended.stderr
    said, found = ended.stdout.splitlines()
    assert "cannot be written" in said
    assert "No space left on device" in said
    assert found == "4"


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    """Nothing of the file that did not fit is left, and the state before it is whole."""
    catalogue = saved(tmp_path, 4)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, limits[1]))
    try:
        with pytest.raises(SavedStateError, match="cannot be written"):
            write(Storage(str(tmp_path)), 8)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list((tmp_path / folder_of(8)).iterdir()) == []
    assert "never completed" in skipped(catalogue, 4)

"""The example text: the same content each time, memory-mapped, never half written, cut at the right bytes."""

import pickle
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from everstep.examples import text


@pytest.fixture(scope="module")
def stdlib(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return text.prepare(tmp_path_factory.mktemp("cache"))


def arrow(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "text.arrow"
    text.write_arrow(content, path)
    return path


def test_sources_are_read_in_the_order_of_their_paths_without_tests_and_packages(tmp_path: Path) -> None:
    for name in (
        "b.py",
        "a/c.py",
        "a.py",
        "test/t.py",
        "a/tests/t.py",
        "site-packages/p.py",
        "__pycache__/q.py",
        "n.txt",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"<{name}>")
    assert text.read_sources(tmp_path) == b"<a.py><a/c.py><b.py>"
    assert text.read_sources(tmp_path, max_bytes=8) == b"<a.py><a"


def test_the_standard_library_gives_the_same_file_each_time(stdlib: Path, tmp_path: Path) -> None:
    again = text.prepare(tmp_path)
    assert again.read_bytes() == stdlib.read_bytes()
    assert 8_000_000 < text.ByteBlocks(again, block=256).byte_count <= text.MAX_BYTES


def test_a_prepared_file_is_used_as_it_is(tmp_path: Path) -> None:
    path = text.prepare(tmp_path)
    text.write_arrow(b"mine", path)
    assert text.ByteBlocks(text.prepare(tmp_path), block=1).byte_count == 4


def test_the_cache_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert text.default_cache() == tmp_path / "everstep"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert text.default_cache() == Path("/home/somebody/.cache/everstep")


def test_items_are_blocks_that_share_only_the_last_target(tmp_path: Path) -> None:
    blocks = text.ByteBlocks(arrow(tmp_path, b"abcdefghi"), block=3)
    assert [bytes(blocks[index].tolist()) for index in range(len(blocks))] == [b"abcd", b"defg"]
    assert blocks[0].dtype == torch.long


@pytest.mark.parametrize(("length", "items"), [(3, 0), (4, 1), (6, 1), (7, 2)])
def test_a_block_without_its_last_target_is_no_item(tmp_path: Path, length: int, items: int) -> None:
    blocks = text.ByteBlocks(arrow(tmp_path, b"x" * length), block=3)
    assert len(blocks) == items
    for index in (-1, items):
        with pytest.raises(IndexError):
            blocks[index]


def test_opening_maps_the_file_and_copies_nothing(stdlib: Path) -> None:
    before = pa.total_allocated_bytes()
    blocks = text.ByteBlocks(stdlib, block=256)
    assert blocks[len(blocks) - 1].shape == (257,)
    assert pa.total_allocated_bytes() - before < 2**20
    assert str(stdlib) in Path("/proc/self/maps").read_text()


def test_another_process_gets_the_path_not_the_bytes(stdlib: Path) -> None:
    blocks = text.ByteBlocks(stdlib, block=256)
    pickled = pickle.dumps(blocks)
    assert len(pickled) < 1000
    assert torch.equal(pickle.loads(pickled)[7], blocks[7])


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(source: str, target: Path) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Path, "replace", fails)
    with pytest.raises(OSError, match="no space left"):
        arrow(tmp_path, b"abc")
    assert list(tmp_path.iterdir()) == []


PREPARE = """
import multiprocessing, sys
from pathlib import Path
from everstep.examples import text

def rank():
    everybody.wait()
    sys.stdout.write(text.ByteBlocks(text.prepare(Path(sys.argv[1])), block=256).sha256() + "\\n")
    sys.stdout.flush()

forked = multiprocessing.get_context("fork")
everybody = forked.Barrier(4)
ranks = [forked.Process(target=rank) for _ in range(4)]
for process in ranks:
    process.start()
for process in ranks:
    process.join()
"""


def test_processes_that_start_at_once_all_read_a_whole_file(stdlib: Path, tmp_path: Path) -> None:
    played = subprocess.run(
        [sys.executable, "-c", PREPARE, str(tmp_path)], capture_output=True, text=True, timeout=60, check=True
    )
    assert played.stdout.split() == [text.ByteBlocks(stdlib, block=256).sha256()] * 4
    assert [path.name for path in tmp_path.iterdir()] == [stdlib.name]

"""Token data sets: a stream of documents cut into blocks, wherever it lies, and no more of it read than is needed."""

import json
import os
import pickle
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from everstep import Microbatches, Tokens, write_tokens
from everstep.actors.rank.data import Loader
from everstep.conf.errors import DataError
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import fs

sys.path.insert(0, str(Path(__file__).parent))
from counting_files import counting

END, VOCABULARY = 0, 300
DOCUMENTS = [[1, 2, 3], [4], [], [5, 6, 7, 8, 9, 10, 11], [12, 299]]
STREAM = [1, 2, 3, 0, 4, 0, 5, 6, 7, 8, 9, 10, 11, 0, 12, 299, 0]


def write(path: Any, documents: Any = DOCUMENTS, **settings: Any) -> int:
    return write_tokens(path, documents, **{"end": END, "vocabulary": VOCABULARY, **settings})


def samples(tokens: Tokens) -> list[list[int]]:
    return [tokens[number].tolist() for number in range(len(tokens))]


# --- packing


def test_documents_lie_end_to_end_and_are_cut_into_blocks_that_share_one_token(tmp_path: Path) -> None:
    assert write(tmp_path / "data") == len(STREAM)
    tokens = Tokens(tmp_path / "data", block=4)
    assert samples(tokens) == [[1, 2, 3, 0, 4], [4, 0, 5, 6, 7], [7, 8, 9, 10, 11], [11, 0, 12, 299, 0]]
    assert (tokens[0].dtype, tokens[0].shape) == (torch.int64, (5,))
    assert (tokens.vocabulary, tokens.end, tokens.token_count) == (VOCABULARY, END, len(STREAM))


@settings(max_examples=60, deadline=None)
@given(
    documents=st.lists(st.lists(st.integers(0, VOCABULARY - 1), max_size=12), min_size=1, max_size=12).filter(any),
    rows=st.integers(1, 9),
    shard=st.integers(1, 40),
    block=st.integers(1, 30),
)
def test_shards_and_record_batches_do_not_show(documents: list[list[int]], rows: int, shard: int, block: int) -> None:
    storage = fs._MockFileSystem()
    count = write("bucket/data", documents, rows=rows, shard=shard, filesystem=storage)
    stream = [token for document in documents if document for token in [*document, END]]
    assert count == len(stream)
    if block >= count:
        with pytest.raises(DataError, match=f"holds {count} tokens: too few for one block of {block}"):
            Tokens("bucket/data", block, storage)
        return
    tokens = Tokens("bucket/data", block, storage)
    assert len(tokens) == (count - 1) // block
    assert samples(tokens) == [stream[first : first + block + 1] for first in range(0, count - block, block)]


def test_shards_are_arrow_files_that_anybody_can_read(tmp_path: Path) -> None:
    write(tmp_path, rows=3, shard=6)
    names = sorted(path.name for path in tmp_path.glob("*.arrow"))
    assert names == ["00000.arrow", "00001.arrow", "00002.arrow"]
    tables = [pa.ipc.open_file(tmp_path / name).read_all() for name in names]
    assert [table.column("token").to_pylist() for table in tables] == [STREAM[:6], STREAM[6:12], STREAM[12:]]


@pytest.mark.parametrize(
    ("vocabulary", "kind"), [(256, "uint8"), (257, "uint16"), (65536, "uint16"), (65537, "uint32")]
)
def test_a_token_takes_no_more_bytes_than_it_needs(tmp_path: Path, vocabulary: int, kind: str) -> None:
    write(tmp_path, [np.array([1, vocabulary - 1, 2])], vocabulary=vocabulary)
    assert str(pa.ipc.open_file(tmp_path / "00000.arrow").schema.field("token").type) == kind
    assert Tokens(tmp_path, 3)[0].tolist() == [1, vocabulary - 1, 2, END]


@pytest.mark.parametrize("make", [list, tuple, np.array, torch.tensor, lambda ids: np.array(ids, np.uint8)])
def test_documents_may_be_lists_arrays_or_tensors_made_one_by_one(tmp_path: Path, make: Callable[..., Any]) -> None:
    write(tmp_path, (make(ids) for ids in ([1, 2], [3])))
    assert Tokens(tmp_path, 4)[0].tolist() == [1, 2, END, 3, END]


# --- where it lies


def places(tmp_path: Path) -> dict[str, tuple[Any, ...]]:
    below = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    return {
        "a path": (tmp_path / "data",),
        "a URI": ((tmp_path / "data").as_uri(),),
        "a folder of another file system": ("data", below),
    }


@pytest.mark.parametrize("place", ["a path", "a URI", "a folder of another file system"])
def test_local_paths_uris_and_file_systems_hold_the_same(tmp_path: Path, place: str) -> None:
    path, *filesystem = places(tmp_path)[place]
    write(path, rows=4, shard=8, filesystem=filesystem[0] if filesystem else None)
    tokens = Tokens(path, 4, *filesystem)
    assert samples(tokens) == [STREAM[first : first + 5] for first in range(0, 16, 4)]
    pickled = pickle.dumps(tokens)
    assert len(pickled) < 1000, "another process gets the address, not the tokens"
    assert samples(pickle.loads(pickled)) == samples(tokens)


def test_a_relative_path_stays_what_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write("data")
    pickled = pickle.dumps(Tokens("data", 4))
    monkeypatch.chdir(tmp_path.parent)
    assert len(pickle.loads(pickled)) == 4


def test_local_files_are_mapped_and_not_copied(tmp_path: Path) -> None:
    write(tmp_path, [np.ones(2**21, np.int64)], vocabulary=2**17, rows=2**20)
    tokens = Tokens(tmp_path, 1024)
    assert str(tmp_path / "00000.arrow") not in Path("/proc/self/maps").read_text(), "opened on first use"
    before = pa.total_allocated_bytes()
    assert tokens[len(tokens) - 1].tolist() == [1] * 1024 + [END]
    assert pa.total_allocated_bytes() - before < 2**16
    assert str(tmp_path / "00000.arrow") in Path("/proc/self/maps").read_text()


def test_few_shards_are_open_at_a_time(tmp_path: Path) -> None:
    write(tmp_path, [[number] * 3 for number in range(1, 200)], rows=4, shard=4)
    tokens = Tokens(tmp_path, 4)
    before = len(os.listdir("/proc/self/fd"))
    assert samples(tokens) == [[number] * 3 + [END, number + 1] for number in range(1, 199)]
    assert len(os.listdir("/proc/self/fd")) - before <= 64


def test_object_storage_is_asked_only_for_what_a_sample_needs(tmp_path: Path) -> None:
    """Opening reads the index; a sample the ends of the shards that hold it, once, and its record batches."""
    write(tmp_path / "data", [np.arange(1, 300)] * 2000, rows=1024, shard=2**16)
    storage, counts = counting(tmp_path)
    tokens = Tokens("data", 256, storage)
    assert counts == {
        "reads": 1,
        "bytes": counts["index.json"],
        "index.json": (tmp_path / "data/index.json").stat().st_size,
    }
    middle = len(tokens) // 2
    first = tokens[middle]
    touched = {name for name in counts if name.endswith(".arrow")}
    assert len(touched) == 1
    counts.clear()
    assert not torch.equal(tokens[middle + 1], first)
    # Two bytes a token, and what Arrow says about a batch.
    assert counts["reads"] <= 2
    assert counts["bytes"] < 2 * 1024 * 2 + 1024
    size = sum(path.stat().st_size for path in (tmp_path / "data").iterdir())
    assert size > 500 * counts["bytes"] / 2


# --- microbatches


class CountingTokens:
    """Which samples were asked for."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self.read: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, sample: int) -> torch.Tensor:
        self.read[sample] += 1
        return self._tokens[sample]


def test_a_rank_that_starts_late_reads_its_own_samples_only(tmp_path: Path) -> None:
    write(tmp_path / "data", [np.arange(1, 300)] * 2000, rows=1024, shard=2**16)
    storage, counts = counting(tmp_path)
    dataset = CountingTokens(Tokens("data", 256, storage))
    loader = Loader(Microbatches(dataset, size=3), 8, seed=1)
    counts.clear()
    batches = [loader.load(10**6, index) for index in (4, 5)]
    assert [batch.shape for batch in batches] == [(3, 257)] * 2
    owed = Counter(loader.order.samples(10**6, 4) + loader.order.samples(10**6, 5))
    assert dataset.read == owed
    # At most two record batches a sample, and the end of each shard.
    shards = len([name for name in counts if name.endswith(".arrow")])
    assert counts["bytes"] < len(owed) * 2 * (2 * 1024 + 512) + shards * 8192


def test_workers_open_the_files_themselves(tmp_path: Path) -> None:
    write(tmp_path, [np.arange(1, 200)] * 5)
    here, there = (Loader(Microbatches(Tokens(tmp_path, 16), 2, workers=workers), 2, 5) for workers in (0, 1))
    try:
        for index in range(2):
            assert torch.equal(here.load(3, index), there.load(3, index))
    finally:
        there.close()


# --- what is refused


@pytest.mark.parametrize(
    ("documents", "settings", "text"),
    [
        ([], {}, "there is no token to write to"),
        ([[], []], {}, "every document is empty"),
        ([[1], [2, 300]], {}, r"document 1 holds token 300, which is not in 0\.\.299"),
        ([[1, -1]], {}, r"document 0 holds token -1, which is not in 0\.\.299"),
        ([[1.5]], {}, r"document 0 is not a 1-d sequence of whole numbers but float64 \(1,\)"),
        ([[[1, 2]]], {}, r"document 0 is not a 1-d sequence of whole numbers but int64 \(1, 2\)"),
        (["text"], {}, "document 0 is not a 1-d sequence"),
        ([[1]], {"end": 300}, r"write_tokens\(end=300, vocabulary=300\): ids must be in 0\.\.vocabulary-1"),
        ([[1]], {"vocabulary": 2**32 + 1}, "ids must be in"),
        ([[1]], {"vocabulary": 0}, r"write_tokens\(vocabulary=0\) must be a whole number"),
        ([[1]], {"rows": 0}, r"write_tokens\(rows=0\)"),
        ([[1]], {"shard": 2.5}, r"write_tokens\(shard=2\.5\)"),
    ],
)
def test_bad_documents_are_refused_and_nothing_looks_whole(
    tmp_path: Path, documents: Any, settings: dict[str, Any], text: str
) -> None:
    with pytest.raises(DataError, match=text) as refusal:
        write(tmp_path, documents, **settings)
    assert "\n" not in str(refusal.value)
    with pytest.raises(DataError, match=r"holds no index\.json"):
        Tokens(tmp_path, 1)


def test_a_data_set_is_not_written_over(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(DataError, match="already holds a token data set: delete it, or choose another folder"):
        write(tmp_path, [[7, 7, 7]])
    assert Tokens(tmp_path, 4)[0].tolist() == STREAM[:5]


def test_a_write_that_broke_off_can_be_made_anew(tmp_path: Path) -> None:
    def documents() -> Any:
        yield [5] * 100
        raise OSError("the tokeniser has gone")

    with pytest.raises(OSError, match="has gone"):
        write(tmp_path, documents(), rows=4, shard=8)
    assert (tmp_path / "00001.arrow").exists()
    write(tmp_path)
    assert samples(Tokens(tmp_path, 4))[0] == STREAM[:5]


def change_index(folder: Path, **changes: Any) -> None:
    index = json.loads((folder / "index.json").read_text())
    (folder / "index.json").write_text(json.dumps({**index, **changes}))


def rewrite_shard(folder: Path, table: pa.Table) -> None:
    """Another file in place of the first shard, with its size in the index."""
    with pa.ipc.new_file(folder / "00000.arrow", table.schema) as writer:
        writer.write_table(table)
    index = json.loads((folder / "index.json").read_text())
    index["shards"][0]["bytes"] = (folder / "00000.arrow").stat().st_size
    change_index(folder, shards=index["shards"])


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (
            lambda folder: (folder / "index.json").unlink(),
            "holds no index.json: it is no token data set, or its writing",
        ),
        (lambda folder: (folder / "index.json").write_text("{"), "index.json is not the index of a token data set"),
        (lambda folder: (folder / "index.json").write_text("[1]"), "is not the index of a token data set"),
        (
            lambda folder: change_index(folder, format="other 9"),
            "is not the index of a token data set that this version",
        ),
        (lambda folder: change_index(folder, type="float32"), "is not the index of a token data set"),
        (lambda folder: change_index(folder, more=1), "is not the index of a token data set"),
        (lambda folder: change_index(folder, shards=[]), "index.json lists no tokens"),
        (lambda folder: change_index(folder, shards=[{"name": "a", "tokens": "8", "bytes": 1}]), "is not the index of"),
        (lambda folder: (folder / "00001.arrow").unlink(), r"00001\.arrow is not there and should have \d+ bytes"),
        (lambda folder: (folder / "00000.arrow").write_bytes(b"12"), r"00000\.arrow has 2 bytes and should have \d+"),
        (
            lambda folder: (folder / "00000.arrow").write_bytes(b"x" * (folder / "00000.arrow").stat().st_size),
            r"00000\.arrow is no Arrow file",
        ),
        (
            lambda folder: rewrite_shard(folder, pa.table({"token": pa.array([1] * 8, pa.int64())})),
            r"00000\.arrow holds 1 record batches of \(token: int64\), the index says 2 of \(token: uint16\)",
        ),
        (
            lambda folder: rewrite_shard(folder, pa.table({"text": ["a"] * 8})),
            r"00000\.arrow holds 1 record batches of \(text: string\)",
        ),
    ],
)
def test_damaged_data_sets_are_refused_in_one_line(tmp_path: Path, damage: Callable[[Path], None], text: str) -> None:
    write(tmp_path, rows=4, shard=8)
    damage(tmp_path)
    with pytest.raises(DataError, match=text) as refusal:
        samples(Tokens(tmp_path, 4))
    assert "\n" not in str(refusal.value)


def test_record_batches_of_another_length_are_refused(tmp_path: Path) -> None:
    write(tmp_path, rows=4, shard=8)
    schema = pa.schema([pa.field("token", pa.uint16(), nullable=False)])
    pieces = [pa.record_batch([pa.array(ids, pa.uint16())], schema=schema) for ids in ([1] * 5, [1] * 3)]
    rewrite_shard(tmp_path, pa.Table.from_batches(pieces))
    with pytest.raises(DataError, match="record batch 0 of shard 0 has 5 tokens: write the data set anew"):
        Tokens(tmp_path, 4)[0]


@pytest.mark.parametrize("block", [0, -1, 2.0, True])
def test_a_block_is_a_positive_number(tmp_path: Path, block: Any) -> None:
    with pytest.raises(DataError, match=rf"Tokens\(block={block}\) must be a whole number"):
        Tokens(tmp_path, block)


@pytest.mark.parametrize("block", [len(STREAM), 10**6])
def test_a_block_longer_than_all_tokens_is_refused(tmp_path: Path, block: int) -> None:
    write(tmp_path)
    assert len(Tokens(tmp_path, len(STREAM) - 1)) == 1
    with pytest.raises(DataError, match=f"holds 17 tokens: too few for one block of {block} and a target more"):
        Tokens(tmp_path, block)


@pytest.mark.parametrize(
    ("path", "text"),
    [("nowhere/at/all", "nowhere/at/all cannot be opened"), ("odd://bucket/x", "odd://bucket/x cannot")],
)
def test_what_is_not_there_is_refused(path: str, text: str) -> None:
    with pytest.raises(DataError, match=text) as refusal:
        Tokens(path, 4)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("sample", [-1, 4])
def test_a_sample_outside_is_refused(tmp_path: Path, sample: int) -> None:
    write(tmp_path)
    with pytest.raises(IndexError, match=f"sample {sample} of 4"):
        Tokens(tmp_path, 4)[sample]

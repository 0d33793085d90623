"""Real text that every machine has: the source of the Python standard library, as bytes.

About 12.1 million bytes with CPython 3.11. ``python -m everstep.examples.text`` says how many it is here.
"""

import hashlib
import os
import platform
import sysconfig
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor
from torch.utils.data import Dataset

MAX_BYTES = 16 * 2**20
_SKIPPED_FOLDERS = frozenset({"__pycache__", "dist-packages", "idle_test", "site-packages", "test", "tests"})


def read_sources(root: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """The Python sources below ``root`` in the order of their paths, without tests and installed packages."""
    paths = (path.relative_to(root) for path in root.rglob("*.py") if path.is_file())
    kept = (path for path in paths if not _SKIPPED_FOLDERS.intersection(path.parts))
    # Not the order of Path itself, which differs between systems.
    ordered = sorted(kept, key=lambda path: path.as_posix())
    return b"".join((root / path).read_bytes() for path in ordered)[:max_bytes]


def write_arrow(content: bytes, path: Path) -> None:
    """Write one column of bytes as an Arrow IPC file, which appears whole or not at all."""
    batch = pa.record_batch({"byte": pa.Array.from_buffers(pa.uint8(), len(content), [None, pa.py_buffer(content)])})
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
            writer.write_batch(batch)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink()
        raise


def default_cache() -> Path:
    """The user's cache folder of everstep."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "everstep"


def prepare(cache: Path | None = None) -> Path:
    """The Arrow file of the standard library's source, written on first use; processes may race for it."""
    path = (cache or default_cache()) / f"python-{platform.python_version()}-stdlib.arrow"
    if not path.exists():
        write_arrow(read_sources(Path(sysconfig.get_path("stdlib"))), path)
    return path


def whole_text(path: Path) -> np.ndarray:
    """The bytes of an Arrow file as ``write_arrow`` makes it, memory-mapped and read-only."""
    column = pa.ipc.open_file(pa.memory_map(str(path))).get_batch(0).column("byte")
    text: np.ndarray = column.to_numpy(zero_copy_only=True)
    return text


class ByteBlocks(Dataset[Tensor]):
    """A memory-mapped text in blocks that do not overlap, each with the one byte after it as the last target.

    Args:
        path: an Arrow IPC file as ``write_arrow`` makes it.
        block: bytes that the model reads of one item; an item holds one more.
    """

    def __init__(self, path: Path, block: int) -> None:
        self.path = path
        self.block = block
        self._bytes = whole_text(path)

    @property
    def byte_count(self) -> int:
        """Length of the whole text."""
        return len(self._bytes)

    def sha256(self) -> str:
        """Digest of the whole text."""
        return hashlib.sha256(self._bytes.data).hexdigest()

    def __len__(self) -> int:
        return (self.byte_count - 1) // self.block

    def __getitem__(self, index: int) -> Tensor:
        if not 0 <= index < len(self):
            raise IndexError(f"block {index} of {len(self)}")
        start = index * self.block
        return torch.from_numpy(self._bytes[start : start + self.block + 1].astype(np.int64))

    def __reduce__(self) -> tuple[type["ByteBlocks"], tuple[Path, int]]:
        # Another process maps the file itself rather than receive its content.
        return ByteBlocks, (self.path, self.block)


def main() -> None:
    """Say where the text lies, how long it is and what its SHA-256 is."""
    text = ByteBlocks(prepare(), block=256)
    print(f"{text.path}: {text.byte_count:,} bytes, SHA-256 {text.sha256()}")


if __name__ == "__main__":
    main()

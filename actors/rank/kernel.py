"""Fused passes over gradients in host memory: ``fold.c``, compiled once per machine if there is a compiler.

Without one the tensor operations do the same to the bit in more passes over memory.
"""

import contextlib
import ctypes
import hashlib
import os
import platform
import shutil
import struct
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

_SOURCE = Path(__file__).with_name("fold.c")
_FLAGS = ("-O3", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC")
_COMPILE_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Kernel:
    """The compiled passes; tensors must be contiguous and in host memory."""

    _library: ctypes.CDLL

    def fold(self, gradient: Tensor, total: Tensor, scale: float, first: bool) -> float:
        """Add ``round(gradient * scale)``, float32, to ``total``, float64, or set it if it is the first.

        Returns:
            Largest |gradient|; not finite if one is not.
        """
        bits = self._library.everstep_fold(gradient.data_ptr(), total.data_ptr(), gradient.numel(), scale, first)
        return float(struct.unpack("f", struct.pack("I", bits))[0])

    def mean(self, parts: Tensor, begin: int, end: int, grid: float, weight: float, mean: Tensor) -> None:
        """Set ``mean[begin:end]``, float32, to ``sum(parts) * grid / weight``; the rows of ``parts`` are float64."""
        source = parts.data_ptr() + begin * parts.element_size()
        target = mean.data_ptr() + begin * mean.element_size()
        self._library.everstep_mean(source, parts.stride(0), parts.shape[0], end - begin, grid, weight, target)


@cache
def fused_kernel() -> Kernel | None:
    """The compiled passes, or None if this machine has no C compiler."""
    library = _library()
    if library is None:
        return None
    pointer, count, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
    library.everstep_fold.restype = ctypes.c_uint32
    library.everstep_fold.argtypes = [pointer, pointer, count, ctypes.c_float, ctypes.c_int32]
    library.everstep_mean.restype = None
    library.everstep_mean.argtypes = [pointer, count, ctypes.c_int32, count, real, real, pointer]
    return Kernel(library)


def takes(gradient: Tensor) -> bool:
    """Whether the fused fold can read this gradient."""
    return gradient.device.type == "cpu" and gradient.dtype is torch.float32 and gradient.is_contiguous()


def _library() -> ctypes.CDLL | None:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or not _SOURCE.is_file():
        return None
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "everstep"
    path = folder / f"fold-{_fingerprint(compiler)}.so"
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        if not path.is_file():
            _compile(compiler, path)
        return ctypes.CDLL(str(path))
    return None


def _compile(compiler: str, path: Path) -> None:
    """Whole or not at all: several ranks of a machine may do this at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder, path.name)
        command = [compiler, *_FLAGS, "-o", str(made), str(_SOURCE), "-lm"]
        subprocess.run(command, check=True, capture_output=True, timeout=_COMPILE_TIMEOUT_S)
        made.replace(path)


def _fingerprint(compiler: str) -> str:
    """Of everything that the library depends on, since a home folder may be shared by unlike machines."""
    digest = hashlib.sha256(_SOURCE.read_bytes())
    digest.update(repr((compiler, _FLAGS, platform.machine(), torch.backends.cpu.get_cpu_capability())).encode())
    with contextlib.suppress(OSError):
        flags = (line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags"))
        digest.update(next(flags, "").encode())
    return digest.hexdigest()[:16]

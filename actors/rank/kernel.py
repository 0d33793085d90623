"""The fused fold for gradients in host memory: ``fold.c``, compiled once per machine if there is a compiler.

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
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

# (gradient, sum, scale, first) -> largest |gradient|
Fold = Callable[[Tensor, Tensor, float, bool], float]

_SOURCE = Path(__file__).with_name("fold.c")
_FLAGS = ("-O3", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC")
_COMPILE_TIMEOUT_S = 60.0


@cache
def fused_fold() -> Fold | None:
    """The fused fold, or None if this machine has no C compiler."""
    library = _library()
    if library is None:
        return None
    function = library.everstep_fold
    function.restype = ctypes.c_uint32
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_int32]

    def fold(gradient: Tensor, total: Tensor, scale: float, first: bool) -> float:
        bits = function(gradient.data_ptr(), total.data_ptr(), gradient.numel(), scale, first)
        return float(struct.unpack("f", struct.pack("I", bits))[0])

    return fold


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

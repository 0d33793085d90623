"""What must be equal on two machines so that they compute the same bits, and the settings that make it so."""

import contextlib
import ctypes
import os
import platform
import sys
import threading

import torch

from ...conf.elastic import Reduction

_COMPUTE_NICE = 5
# Of glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES, _LARGEST_MMAP_THRESHOLD = 2**30, 2**25


def prepare(device: torch.device, threads: int, reduction: Reduction) -> None:
    """Fix what would make results depend on history or luck; before the user's function is called."""
    torch.set_num_threads(threads)
    if device.type == "cpu":
        keep_freed_memory()
    if reduction is Reduction.EXACT:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
        # Filling new memory is for programs that read it unwritten; it costs a pass over every buffer.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def keep_freed_memory() -> None:
    """What a backward frees the next one wants again: giving it back in between costs a page fault per 4 KiB."""
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def yield_to_control() -> None:
    """Let this thread, which computes all day, wait for those that seldom run but hold everybody up when they do."""
    if sys.platform == "linux":
        # There a thread has a priority of its own; to lower it needs no privilege.
        nice = os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), min(19, nice + _COMPUTE_NICE))


def fingerprint(device: torch.device) -> dict[str, str]:
    """Facts that must be equal on all members: versions, instruction set, threads, device type."""
    facts = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": platform.machine(),
        "instruction set": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
        "device": device.type,
    }
    if device.type == "cuda":
        facts["gpu"] = torch.cuda.get_device_name(device)
        facts["cuda"] = str(torch.version.cuda)
    return facts

"""Entries of ranks and vaults that run as plain processes of this machine."""

import ctypes
import pickle
import signal

from ..actors.node.vault_memory import Heap
from ..actors.node.vault_process import VaultProcess, VaultSpec
from ..actors.rank.process import RankProcess
from ..actors.rank.spec import RankSpec

_PR_SET_PDEATHSIG = 1


def main(spec: RankSpec, train: bytes, tied: bool) -> None:
    """Run one rank to its end.

    Args:
        tied: whether it ends with the process that has started it; else it waits for another controller.
    """
    if tied:
        _end_with_parent()
    RankProcess(spec).run(pickle.loads(train))


def keep(spec: VaultSpec, tied: bool) -> None:
    """Run one vault to its end."""
    if tied:
        _end_with_parent()
    VaultProcess(spec, Heap()).run()


def _end_with_parent() -> None:
    # The forkserver outlives the test that started it, nothing must outlive the forkserver.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

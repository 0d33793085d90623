"""Entry of a rank that runs as a plain process of this machine."""

import ctypes
import pickle
import signal

from ..actors.rank.process import RankProcess
from ..actors.rank.spec import RankSpec

_PR_SET_PDEATHSIG = 1


def main(spec: RankSpec, train: bytes, tied: bool) -> None:
    """Run one rank to its end.

    Args:
        tied: whether it ends with the process that has started it; else it waits for another controller.
    """
    if tied:
        # The forkserver outlives the test that started it, the rank must not outlive the forkserver.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    RankProcess(spec).run(pickle.loads(train))

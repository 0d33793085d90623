"""What happens to an actor's process when the raylet that has started it ends: it ends too, whatever it is doing."""

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
# Ray tells every worker.
_RAYLET = "RAY_RAYLET_PID"


def raylet_pid() -> int:
    """Of the raylet of this node, where this process is one of its workers; else of the parent."""
    return int(os.environ.get(_RAYLET, os.getppid()))


def end_with_raylet() -> None:
    """Have the kernel kill this process when its raylet ends; to be called on the main thread.

    No thread could do that in a process that is in a long call and holds the interpreter's lock, or is stopped. Where a
    wrapper stands between the two (a container, a shell) it is left to the sentinel.
    """
    raylet = raylet_pid()
    if os.getppid() != raylet:
        return
    # Raylets start workers on their main thread, so the signal does not come before the raylet ends.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != raylet:
        # It has ended in between.
        os.kill(os.getpid(), signal.SIGKILL)

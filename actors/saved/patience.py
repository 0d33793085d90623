"""Calls that may never come back: a storage that hangs must not hold up whoever asks it."""

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Answer = TypeVar("Answer")


def within(seconds: float, work: Callable[[], Answer], otherwise: Callable[[], object] | None = None) -> Answer:
    """What ``work`` returns or raises; a call that takes longer is left behind with its thread.

    Args:
        otherwise: tidies up, on that thread, when ``work`` has failed at last, or has come back too late.

    Raises:
        TimeoutError: it has not come back in time.
    """
    came: Future[Answer] = Future()
    deciding = threading.Lock()
    left = False

    def tidy_up() -> None:
        if otherwise is not None:
            with contextlib.suppress(Exception):
                otherwise()

    def answer() -> None:
        try:
            answered = work()
        except BaseException as error:
            tidy_up()
            came.set_exception(error)
            return
        with deciding:
            if not left:
                came.set_result(answered)
                return
        tidy_up()

    # A daemon: nothing else could end a process whose call hangs in the kernel.
    threading.Thread(target=answer, name="everstep-storage", daemon=True).start()
    try:
        return came.result(seconds)
    except BaseException:
        with deciding:
            left = not came.done()
        if not left:
            return came.result()
        raise TimeoutError(f"it has not answered for {seconds:g} s") from None

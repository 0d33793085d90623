"""Groups of this rank by generation: built in the background, interrupted from any thread, freed off the path."""

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from ...conf.errors import CommunicatorError
from ...policies.world import Generation
from ..messages import Open
from .communicator import Communicator

Build = Callable[[Open], Communicator]


# Groups that nobody will free; the end of the process does.
_LEFT: list[Future[Communicator]] = []


class Groups:
    """Every group that this process has made and not yet freed.

    Args:
        build: meets the peers of an ``Open``; blocking, raises CommunicatorError.
        on_built: called on the building thread with the generation and the seconds that it took.
        on_failed: called on the building thread with the generation and the error.
    """

    def __init__(
        self,
        build: Build,
        on_built: Callable[[Generation, float], None],
        on_failed: Callable[[Generation, CommunicatorError], None],
    ) -> None:
        self._build = build
        self._on_built = on_built
        self._on_failed = on_failed
        self._lock = threading.Lock()
        self._futures: dict[Generation, Future[Communicator]] = {}

    def open(self, message: Open) -> None:
        """Begin to build the group of a new generation; training goes on meanwhile."""
        generation = message.world.generation
        future: Future[Communicator] = Future()
        with self._lock:
            self._futures[generation] = future
        # A thread of its own: one that waits for a dead peer may not hold up the next generation.
        threading.Thread(
            target=self._run, args=(message, future), name=f"everstep-build-{generation}", daemon=True
        ).start()

    def get(self, generation: Generation, timeout: float) -> Communicator:
        """The group of a generation, once it is built.

        Raises:
            CommunicatorError: it could not be built, or not in ``timeout`` seconds.
        """
        with self._lock:
            future = self._futures.get(generation)
        if future is None:
            raise CommunicatorError(f"generation {generation} is over")
        try:
            return future.result(timeout)
        except TimeoutError:
            raise CommunicatorError(f"the group of generation {generation} took over {timeout:g} s to build") from None

    def interrupt(self, generation: Generation) -> None:
        """Make collectives of this generation fail at once, or whoever waits for its group to be built."""
        with self._lock:
            future = self._futures.get(generation)
            if future is not None and not future.done():
                future.set_exception(CommunicatorError(f"generation {generation} was abandoned while it was built"))
        if (communicator := self.ready(generation)) is not None:
            communicator.interrupt()

    def accused(self, generation: Generation, error: CommunicatorError) -> int | None:
        """Place in the world of the peer that the error points at."""
        communicator = self.ready(generation)
        return None if communicator is None else communicator.accused(error)

    def retire(self, before: Generation) -> None:
        """Free the groups of older generations in the background; freeing one joins its threads."""
        with self._lock:
            old = [self._futures.pop(generation) for generation in sorted(self._futures) if generation < before]
        if old:
            threading.Thread(target=_close, args=(old,), name="everstep-retire", daemon=True).start()

    def leave(self) -> None:
        """At the end of this rank's life: free nothing, since to free a group joins threads that may wait long."""
        with self._lock:
            _LEFT.extend(self._futures.values())

    def ready(self, generation: Generation) -> Communicator | None:
        """The group of a generation if it is built by now."""
        with self._lock:
            future = self._futures.get(generation)
        if future is None or not future.done() or future.exception() is not None:
            return None
        return future.result()

    def _run(self, message: Open, future: Future[Communicator]) -> None:
        generation = message.world.generation
        started = time.monotonic()
        try:
            communicator = self._build(message)
        except Exception as failure:
            # Whoever waits for the group must hear of any failure: this thread's own end tells nobody.
            error = failure if isinstance(failure, CommunicatorError) else CommunicatorError(repr(failure))
            with self._lock:
                abandoned = future.done()
                if not abandoned:
                    future.set_exception(error)
            if not abandoned:
                self._on_failed(generation, error)
            return
        with self._lock:
            abandoned = future.done()
            if not abandoned:
                future.set_result(communicator)
        if abandoned:
            communicator.close()
            return
        self._on_built(generation, time.monotonic() - started)
        # If the group broke meanwhile, whoever uses it finds out.
        with contextlib.suppress(CommunicatorError):
            communicator.learn()


def _close(futures: list[Future[Communicator]]) -> None:
    for future in futures:
        # A build that still waits for a dead peer ends by its own deadline.
        error = future.exception()
        if error is None:
            future.result().close()

"""Ask a run for its state from anywhere on the cluster."""

import math
import os
import socket
import time
from collections.abc import Mapping
from typing import Any

from ..actors.messages import StepRecord
from ..conf.errors import ClusterError, ConfigError, ControllerAwayError, RunNotFoundError
from .names import NAMESPACE, controller_name
from .view import Phase, RunState

CALL_TIMEOUT_S = 10.0
REPLACED_TIMEOUT_S = 30.0


class RunHandle:
    """A living run.

    Raises, in every method:
        RunNotFoundError: the run is over.
        ControllerAwayError: its controller died and no other has come in 30 s; not in ``state``, which says so.
    """

    def __init__(self, run: str, controller: Any) -> None:
        self._run = run
        self._controller = controller

    def state(self) -> RunState:
        """What the run is doing; answers also in the middle of a recovery, and while its controller is replaced."""
        try:
            return self._call(self._controller.state, patience=0.0)  # type: ignore[no-any-return]
        except ControllerAwayError as error:
            return RunState(self._run, Phase.ADOPTING, str(error))

    def events(self) -> list[Mapping[str, object]]:
        """What happened so far, oldest first."""
        return self._call(self._controller.events)  # type: ignore[no-any-return]

    def records(self, since: int = 0) -> list[StepRecord]:
        """The numbers of the steps from ``since`` on, each step once and in order; the newest 10,000 at most."""
        return self._call(self._controller.records, since)  # type: ignore[no-any-return]

    def scale(self, replicas: int) -> None:
        """Have so many replicas from now on. New ones join between two microbatches, those that leave finish what they
        have begun, and no step is computed twice.

        Raises:
            ConfigError: no positive number, or fewer than the run's minimum.
        """
        if not isinstance(replicas, int) or isinstance(replicas, bool) or replicas < 1:
            raise ConfigError(f"scale({replicas!r}): give a whole number of replicas, at least 1")
        refusal = self._call(self._controller.scale, replicas)
        if refusal is not None:
            raise ConfigError(f"run {self._run!r} cannot be scaled: {refusal}")

    def drain(self, node: str, reason: str = "asked from outside") -> None:
        """Have every rank leave a node, and start none there any more; others are asked for elsewhere.

        Args:
            node: its id, or the beginning of it, as ``state().members`` shows it.
            reason: for the journal.

        Raises:
            ConfigError: no rank lives on such a node, or the beginning fits several.
        """
        held = sorted({member.node for member in self.state().members if member.node})
        fits = [each for each in held if node and each.startswith(node)]
        if len(fits) != 1:
            said = "fits several nodes" if fits else "is no node with a rank"
            raise ConfigError(f"drain({node!r}) {said} of run {self._run!r}; there are {', '.join(held) or 'none'}")
        self._call(self._controller.drain, fits[0], reason)

    def stop(self, reason: str = "asked from outside") -> None:
        """End the run without success."""
        self._call(self._controller.stop, reason)

    def wait(self, timeout: float | None = None) -> RunState:
        """Block until the run has ended; returns its last state.

        Raises:
            TimeoutError: it has not ended within ``timeout`` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        state = self.state()
        while not state.phase.ended:
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"run {self._run!r} is still {state.phase} after {timeout:g} s: {state.reason}")
            time.sleep(0.2)
            try:
                state = self.state()
            except RunNotFoundError:
                break
        return state

    def _call(self, method: Any, *args: Any, patience: float = REPLACED_TIMEOUT_S) -> Any:
        import ray
        from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayActorError

        deadline = time.monotonic() + patience
        while True:
            try:
                return ray.get(method.remote(*args), timeout=CALL_TIMEOUT_S)
            except (ActorUnavailableError, GetTimeoutError):
                if time.monotonic() >= deadline:
                    raise ControllerAwayError(f"the controller of run {self._run!r} is being replaced") from None
                time.sleep(0.2)
            except RayActorError:
                raise RunNotFoundError(f"run {self._run!r} is over") from None


def connect(run: str, address: str | None = None) -> RunHandle:
    """A handle on a living run.

    Args:
        run: its name.
        address: of the Ray cluster; None takes the one that this process is connected to, else RAY_ADDRESS.

    Raises:
        RunNotFoundError: no run of this name is alive.
    """
    import ray

    if not ray.is_initialized():
        join_ray(address or os.environ.get("RAY_ADDRESS") or "auto")
    try:
        return RunHandle(run, ray.get_actor(controller_name(run), namespace=NAMESPACE))
    except ValueError:
        raise RunNotFoundError(f"no run {run!r} is alive on this cluster") from None


# How soon Ray itself notices that a node is gone or stopped: within 2 and 7 s, where it would take up to 15 and 65 s.
HEALTH_CHECKS = {
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}


def start_ray(cpus: float) -> None:
    """Start a Ray cluster of this process's own, with room for ``cpus`` logical CPUs; it ends with the process."""
    import ray

    # Ray would run actors at the lowest but a few priority; ranks are what this cluster is for.
    for name, value in {"RAY_worker_niceness": "0", **HEALTH_CHECKS}.items():
        os.environ.setdefault(name, value)
    ray.init(
        address="local",
        num_cpus=math.ceil(cpus),
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )


def join_ray(address: str) -> None:
    """Connect this process to a Ray cluster that runs.

    Raises:
        ClusterError: nothing listens there, or it refuses us; found out in seconds, where Ray would go on trying.
    """
    import ray

    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        if host and port.isdigit():
            socket.create_connection((host, int(port)), timeout=CALL_TIMEOUT_S).close()
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (OSError, RuntimeError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ClusterError(
            f"no Ray cluster can be reached at {address!r}: {reason}; is it up, and does RAY_AUTH_MODE agree?"
        ) from None

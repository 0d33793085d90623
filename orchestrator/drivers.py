"""Drive a run to its end from this process: through a controller actor on Ray, or through one right here."""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..actors import wire
from ..conf.errors import RunAliveError, TrainingFailedError
from .listener import DriverHello
from .lives import begin_life
from .plan import RunPlan
from .view import Look, RunState

POLL_S = 0.2
OnState = Callable[[RunState], None]


class Driver(Protocol):
    """Runs a plan to its end."""

    def drive(self, plan: RunPlan, on_state: OnState) -> RunState:
        """Block until the run is over and nothing of it is left; returns its last state."""
        ...


class LocalDriver:
    """Controller on a thread of this process, ranks as processes of this machine.

    Args:
        nodes: names under which they are dealt out, as if this machine were several.
    """

    def __init__(self, nodes: Sequence[str] = ("localhost",)) -> None:
        self._nodes = nodes

    def drive(self, plan: RunPlan, on_state: OnState) -> RunState:
        from .local_cluster import LocalCluster

        controller = begin_life(plan, LocalCluster(plan.program(), nodes=self._nodes))
        loop = asyncio.new_event_loop()
        future = asyncio.run_coroutine_threadsafe(controller.run(), loop)
        thread = threading.Thread(target=loop.run_forever, name="everstep-controller", daemon=True)
        thread.start()
        try:
            while not future.done():
                on_state(controller.state())
                with contextlib.suppress(TimeoutError):
                    future.result(POLL_S)
            state = future.result()
            on_state(state)
            return state
        finally:
            if not future.done():
                loop.call_soon_threadsafe(controller.stop, "its driver ended")
                future.result(30.0)
            loop.call_soon_threadsafe(loop.stop)
            thread.join(5.0)
            loop.close()


class RayDriver:
    """Controller as a detached actor on Ray; the run ends with this driver unless it finishes before."""

    def drive(self, plan: RunPlan, on_state: OnState) -> RunState:
        import ray
        from ray.exceptions import RayError

        from .controller_actor import ControllerActor, directory_of
        from .names import NAMESPACE, controller_name

        refuse_living(plan.run)
        try:
            controller = (
                ray.remote(ControllerActor)
                .options(
                    name=controller_name(plan.run),
                    namespace=NAMESPACE,
                    lifetime="detached",
                    max_restarts=-1,
                    max_task_retries=0,
                    num_cpus=0,
                    # Ray has a random node place what needs nothing, and a new one does not know of this one yet.
                    memory=1,
                    scheduling_strategy=_here(ray),
                )
                .remote(plan)
            )
        except ValueError:
            raise RunAliveError(_alive(plan.run)) from None
        line = _Line(ray, controller, plan)
        try:
            while True:
                look = line.ask()
                if look is None:
                    continue
                on_state(look.state)
                if look.over:
                    return look.state
                time.sleep(POLL_S)
        except RayError as error:
            last = str(error).strip().splitlines()[-1].strip()
            raise TrainingFailedError(f"the controller failed: {last}", traceback=str(error)) from None
        except KeyboardInterrupt:
            with contextlib.suppress(Exception):
                ray.get(controller.stop.remote("interrupted by its driver"), timeout=5.0)
                line.await_end(15.0)
            raise
        finally:
            end_actors(plan.run)
            with contextlib.suppress(OSError):
                directory_of(plan).forget()
            line.close()


class _Line:
    """A driver's line to the controller, whichever life that is in; its end is the end of the run.

    A lease that the driver must renew would end healthy runs on a busy machine.
    """

    def __init__(self, ray: Any, controller: Any, plan: RunPlan) -> None:
        self._ray = ray
        self._controller = controller
        self._plan = plan
        self._leash: socket.socket | None = None
        self._tied: tuple[str, int] | None = None
        # When the first call began that was not answered; what the driver itself takes its time for is no silence.
        self._unanswered: float | None = None
        # After so long it is replaced; one that starts may take its time.
        self._patience = plan.elastic.timeouts.start / 2

    def ask(self) -> "Look | None":
        """A look at the run, None if the controller does not answer; one that is silent for long is replaced.

        Raises:
            RayActorError: it is dead for good.
            TrainingFailedError: nobody answers any more.
        """
        from ray.exceptions import ActorUnavailableError, GetTimeoutError

        timeouts = self._plan.elastic.timeouts
        began = self._unanswered if self._unanswered is not None else time.monotonic()
        try:
            look: Look = self._ray.get(self._controller.look.remote(), timeout=timeouts.heartbeat)
        except (ActorUnavailableError, GetTimeoutError) as error:
            self._unanswered, silent = began, time.monotonic() - began
            if silent > timeouts.start:
                raise TrainingFailedError(f"the controller has not answered for {silent:.0f} s") from None
            # Ray sees processes that end, and starts the actor anew; it does not see those that are stopped.
            stopped = isinstance(error, GetTimeoutError) and silent > self._patience
            if stopped:
                self._ray.kill(self._controller, no_restart=False)
            if stopped or isinstance(error, ActorUnavailableError):
                self._patience = silent + timeouts.start / 2
            time.sleep(POLL_S)
            return None
        self._unanswered, self._patience = None, timeouts.adopt
        if look.address is not None and look.address != self._tied:
            self._tie(look.address)
        return look

    def await_end(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            look = self.ask()
            if look is not None and look.over:
                return
            time.sleep(POLL_S)

    def close(self) -> None:
        if self._leash is not None:
            self._leash.close()

    def _tie(self, address: tuple[str, int]) -> None:
        """Connect to the controller, so that the end of this process ends the run."""
        self.close()
        with contextlib.suppress(OSError):
            self._leash = socket.create_connection(address, timeout=10.0)
            self._leash.sendall(wire.greeting(self._plan.token) + wire.encode(DriverHello()))
            self._tied = address


def refuse_living(run: str) -> None:
    """Refuse a name under which a run is alive.

    Raises:
        RunAliveError: in one line.
    """
    import ray

    from .names import NAMESPACE, controller_name

    with contextlib.suppress(ValueError):
        ray.get_actor(controller_name(run), namespace=NAMESPACE)
        raise RunAliveError(_alive(run))


def end_actors(run: str, timeout: float = 10.0) -> list[str]:
    """Kill every actor of a run and wait until Ray knows none of them; returns the names that are left."""
    import ray

    from .names import NAMESPACE, prefix

    deadline = time.monotonic() + timeout
    while True:
        names = [
            entry["name"]
            for entry in ray.util.list_named_actors(all_namespaces=True)
            if entry["namespace"] == NAMESPACE and entry["name"].startswith(prefix(run))
        ]
        if not names or time.monotonic() > deadline:
            return names
        for name in names:
            with contextlib.suppress(ValueError):
                ray.kill(ray.get_actor(name, namespace=NAMESPACE), no_restart=True)
        time.sleep(0.05)


def _here(ray: Any) -> Any:
    """This node, if it can: the controller must not hold a node that the cluster could give back."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)


def _alive(run: str) -> str:
    return f"run {run!r} is alive on this cluster: wait for it, stop it, or choose another name"

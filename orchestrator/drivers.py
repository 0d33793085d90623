"""Drive a run to its end from this process: through a controller actor on Ray, or through one right here."""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from ..actors import wire
from ..actors.messages import DriverHello
from ..conf.errors import RunAliveError, TrainingFailedError
from .controller import Controller
from .journal import Journal
from .plan import RunPlan
from .view import RunState

POLL_S = 0.2
OnState = Callable[[RunState], None]


class Driver(Protocol):
    """Runs a plan to its end."""

    def drive(self, plan: RunPlan, on_state: OnState) -> RunState:
        """Block until the run is over and nothing of it is left; returns its last state."""
        ...


class LocalDriver:
    """Controller on a thread of this process, ranks as processes of this machine."""

    def drive(self, plan: RunPlan, on_state: OnState) -> RunState:
        from .local_cluster import LocalCluster

        cluster = LocalCluster(plan.program())
        settings, journal = plan.settings(term=1), Journal(plan.journal)
        controller = Controller(settings, cluster, journal, plan.sinks(), plan.checkpoints())
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
        import ray.exceptions
        from ray.exceptions import GetTimeoutError, RayError

        from .controller_actor import ControllerActor
        from .names import NAMESPACE, controller_name

        refuse_living(plan.run)
        try:
            controller = (
                ray.remote(ControllerActor)
                .options(
                    name=controller_name(plan.run),
                    namespace=NAMESPACE,
                    lifetime="detached",
                    max_restarts=0,
                    max_task_retries=0,
                    num_cpus=0,
                    scheduling_strategy=_here(ray),
                )
                .remote(plan)
            )
        except ValueError:
            raise RunAliveError(_alive(plan.run)) from None
        over = controller.run.remote()
        leash: socket.socket | None = None
        try:
            while True:
                leash = leash or _tie(ray, controller, plan.token)
                ready, _ = ray.wait([over], timeout=POLL_S)
                if ready:
                    state: RunState = ray.get(over)
                    on_state(state)
                    return state
                with contextlib.suppress(GetTimeoutError):
                    seen = ray.get(controller.state.remote(), timeout=5.0)
                    if seen is not None:
                        on_state(seen)
        except RayError as error:
            last = str(error).strip().splitlines()[-1].strip()
            raise TrainingFailedError(f"the controller failed: {last}", traceback=str(error)) from None
        except KeyboardInterrupt:
            with contextlib.suppress(Exception):
                ray.get(controller.stop.remote("interrupted by its driver"), timeout=5.0)
                ray.get(over, timeout=15.0)
            raise
        finally:
            end_actors(plan.run)
            if leash is not None:
                leash.close()


def _tie(ray: Any, controller: Any, token: str) -> socket.socket | None:
    """Connect to the controller, so that the end of this process ends the run; None while it does not listen yet.

    A lease that the driver must renew would end healthy runs on a busy machine.
    """
    with contextlib.suppress(ray.exceptions.GetTimeoutError):
        address = ray.get(controller.address.remote(), timeout=5.0)
        if address is not None:
            leash = socket.create_connection(address, timeout=10.0)
            leash.sendall(wire.greeting(token) + wire.encode(DriverHello()))
            return leash
    return None


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

"""The controller as a Ray actor: detached and named, so that anybody can ask it for its state at any moment."""

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import ray
from ray.experimental import internal_kv

from ..actors.messages import StepRecord
from . import strict_json
from .controller import Controller
from .journal import Journal
from .names import NAMESPACE
from .plan import RunPlan
from .ray_cluster import RayCluster
from .view import RunState


def take_term(run: str) -> int:
    """The next term of this run, by create-if-absent in Ray's key-value store: no two controllers hold one."""
    term = 1
    while internal_kv._internal_kv_put(_term_key(run, term), b"taken", overwrite=False, namespace=_kv_namespace()):
        term += 1
    return term


def release_terms(run: str) -> None:
    """Forget the terms of a run that is over."""
    internal_kv._internal_kv_del(f"{run}/term/", del_by_prefix=True, namespace=_kv_namespace())


class ControllerActor:
    """Runs one controller; an async actor, so it answers while it recovers.

    Args:
        plan: of the run.
    """

    def __init__(self, plan: RunPlan) -> None:
        self._plan = plan
        self._term = take_term(plan.run)
        self._controller: Controller | None = None
        self._cluster: RayCluster | None = None

    async def run(self) -> RunState:
        """The whole run; returns its last state."""
        plan = self._plan
        self._cluster = RayCluster(plan.program(), plan.scaling, plan.runtime_env)
        journal = Journal(plan.journal)
        settings = plan.settings(self._term)
        self._controller = Controller(settings, self._cluster, journal, plan.sinks(), plan.checkpoints())
        asyncio.get_running_loop().call_later(plan.elastic.timeouts.start, self._end_untied)
        try:
            state = await self._controller.run()
        finally:
            release_terms(plan.run)
        if plan.folder:
            Path(plan.folder, "result.json").write_text(strict_json.dumps(asdict(state), indent=2))
        # The driver ends this actor when it has the result; if the driver is gone, the actor ends itself.
        asyncio.get_running_loop().call_later(plan.elastic.timeouts.driver, self._end)
        return state

    async def state(self) -> RunState | None:
        """One look at the run."""
        return self._controller.state() if self._controller else None

    async def address(self) -> tuple[str, int] | None:
        """Where the driver ties its leash, once the controller listens."""
        return self._cluster.address if self._cluster else None

    async def events(self) -> list[Mapping[str, object]]:
        """The journal so far."""
        return self._controller.events() if self._controller else []

    async def records(self, since: int) -> list[StepRecord]:
        """The newest records of steps."""
        return self._controller.records(since) if self._controller else []

    async def stop(self, reason: str) -> None:
        """End the run."""
        if self._controller is not None:
            self._controller.stop(reason)

    async def scale(self, replicas: int) -> str | None:
        """Have so many replicas from now on; returns why not, if that cannot be."""
        return self._controller.scale(replicas) if self._controller else "the controller starts"

    async def drain(self, node: str, reason: str) -> None:
        """Have everybody leave a node."""
        if self._controller is not None:
            self._controller.drain(node, reason)

    def _end_untied(self) -> None:
        """A driver that died before it tied its leash will never come."""
        if self._controller is not None and self._cluster is not None and not self._cluster.tied:
            self._controller.stop("its driver never came")

    @staticmethod
    def _end() -> None:
        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)


def _term_key(run: str, term: int) -> str:
    return f"{run}/term/{term}"


def _kv_namespace() -> bytes:
    return NAMESPACE.encode()

"""The controller as a Ray actor: detached and named, so that anybody can ask it for its state at any moment.

Ray restarts it when its process dies. Nobody has to call it then: it takes a new term and goes on by itself.
"""

import asyncio
import gc
import os
from collections.abc import Mapping

import ray

from ..actors.directory import RayDirectory
from ..actors.messages import StepRecord
from .cluster import describe
from .controller import Controller
from .journal_keys import Keys
from .lives import begin_life, end_life
from .names import NAMESPACE
from .plan import RunPlan
from .ray_cluster import RayCluster
from .tenure import Deposed, Tenure
from .view import Look, Phase, RunState


def directory_of(plan: RunPlan) -> RayDirectory:
    """Where the terms of this launch of the run are taken."""
    return RayDirectory(f"{plan.run}/{plan.launch}", NAMESPACE)


class ControllerActor:
    """Runs one controller life; an async actor, so it answers while it recovers.

    Args:
        plan: of the run.
    """

    def __init__(self, plan: RunPlan) -> None:
        # In a large world there are millions of values and no cycles: to look for some takes longer than a plan.
        gc.set_threshold(100_000)
        self._plan = plan
        directory = directory_of(plan)
        self._tenure = Tenure(directory)
        self._cluster = RayCluster(plan.program(), plan.scaling, plan.runtime_env, self._tenure)
        self._controller: Controller = begin_life(plan, self._cluster, [Keys(directory)])
        self._ended: RunState | None = None
        self._running = asyncio.get_running_loop().create_task(self._run())

    async def state(self) -> RunState:
        """One look at the run; its last state, if that is ended."""
        return self._ended or self._controller.state()

    async def look(self) -> Look:
        """For the driver: it ties its leash where the controller listens, and ends this actor when the run is over."""
        return Look(self._cluster.address, await self.state(), self._ended is not None)

    async def events(self) -> list[Mapping[str, object]]:
        """The journal so far, of all controller lives."""
        return self._controller.events()

    async def records(self, since: int) -> list[StepRecord]:
        """The newest records of steps."""
        return self._controller.records(since)

    async def stop(self, reason: str) -> None:
        """End the run."""
        self._controller.stop(reason)

    async def _run(self) -> None:
        plan, loop = self._plan, asyncio.get_running_loop()
        timeouts = plan.elastic.timeouts
        # A driver that has not tied its leash by then will never come; one that had ties it anew within moments.
        loop.call_later(timeouts.start if self._tenure.term == 1 else timeouts.orphan, self._end_untied)
        try:
            state = await self._controller.run()
            end_life(plan, self._tenure, state)
        except Deposed:
            # Not by Ray's means, which would end the newer life as well.
            os._exit(0)
        except Exception as error:
            state = RunState(plan.run, Phase.FAILED, "", error=f"the controller failed: {describe(error)}")
        self._ended = state
        # The driver ends this actor when it has the result; if the driver is gone, the actor ends itself.
        loop.call_later(timeouts.driver, self._end)

    async def scale(self, replicas: int) -> str | None:
        """Have so many replicas from now on; returns why not, if that cannot be."""
        return self._controller.scale(replicas) if self._controller else "the controller starts"

    async def drain(self, node: str, reason: str) -> None:
        """Have everybody leave a node."""
        if self._controller is not None:
            self._controller.drain(node, reason)

    def _end_untied(self) -> None:
        if not self._cluster.tied:
            self._controller.stop("its driver never came")

    @staticmethod
    def _end() -> None:
        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)

"""The controller as a Ray actor: detached and named, so that anybody can ask it for its state at any moment."""

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import ray
from ray.experimental import internal_kv

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
        foreground: True ends the run when the driver stops asking for its state.
    """

    def __init__(self, plan: RunPlan, foreground: bool) -> None:
        self._plan = plan
        self._foreground = foreground
        self._term = take_term(plan.run)
        self._controller: Controller | None = None
        self._asked = time.monotonic()
        self._abandoned = False

    async def run(self) -> RunState:
        """The whole run; returns its last state."""
        plan = self._plan
        cluster = RayCluster(plan.program(), plan.scaling, plan.runtime_env)
        self._controller = Controller(plan.settings(self._term), cluster, Journal(plan.journal))
        guard = asyncio.create_task(self._end_with_driver())
        try:
            state = await self._controller.run()
        finally:
            guard.cancel()
            release_terms(plan.run)
        if plan.folder:
            Path(plan.folder, "result.json").write_text(json.dumps(asdict(state), default=str, indent=2))
        if self._abandoned:
            # Nobody is left to end this actor.
            ray.kill(ray.get_runtime_context().current_actor, no_restart=True)
        return state

    async def state(self, renew: bool = False) -> RunState | None:
        """One look at the run; the driver renews its lease with it."""
        if renew:
            self._asked = time.monotonic()
        return self._controller.state() if self._controller else None

    async def events(self) -> list[Mapping[str, object]]:
        """The journal so far."""
        return self._controller.events() if self._controller else []

    async def stop(self, reason: str) -> None:
        """End the run."""
        if self._controller is not None:
            self._controller.stop(reason)

    async def _end_with_driver(self) -> None:
        patience = self._plan.elastic.timeouts.driver
        while self._foreground and not self._abandoned:
            await asyncio.sleep(patience / 8)
            if time.monotonic() - self._asked > patience:
                assert self._controller is not None
                self._abandoned = True
                self._controller.stop(f"its driver was not heard of for {patience:g} s")


def _term_key(run: str, term: int) -> str:
    return f"{run}/term/{term}"


def _kv_namespace() -> bytes:
    return NAMESPACE.encode()

"""Ranks as Ray actors: detached, named, never restarted by Ray; the controller makes new lives on purpose."""

import asyncio
import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import psutil
import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, ActorUnschedulableError

from ..actors.messages import Hello
from ..actors.node.sentinel import SentinelSpec
from ..actors.node.sentinel_actor import SentinelActor
from ..actors.node.sentinel_messages import SentinelHello, Strike
from ..actors.node.vault_actor import VaultActor
from ..actors.node.vault_messages import VaultHello
from ..actors.rank.actor import RankActor
from ..conf.scaling import Placement, Scaling
from ..policies.world import Seat
from . import node_actors, ray_nodes
from .cluster import Program, Sink, describe, vault_spec
from .listener import Listener
from .machine.events import Event, Heard
from .machine.past import Past
from .names import NAMESPACE, controller_name, rank_name
from .store import open_store
from .tenure import Tenure
from .vault_fleet import StartVault


@dataclass
class _Life:
    actor: Any
    watch: "asyncio.Task[None]"
    node: str = ""
    process: psutil.Process | None = None


class RayCluster:
    """Actors on the cluster that this process is connected to.

    Args:
        program: what they run.
        scaling: what each reserves.
        runtime_env: of the actors.
        tenure: of the controller.
    """

    def __init__(self, program: Program, scaling: Scaling, runtime_env: Mapping[str, Any], tenure: Tenure) -> None:
        self.tenure = tenure
        self._program = program
        self._scaling = scaling
        self._runtime_env = dict(runtime_env)
        self._host = ray.util.get_node_ip_address()
        self._node = ray.get_runtime_context().get_node_id()
        self._listener = Listener(self._host, program.template.token)
        self._store: Any = None
        self._lives: dict[str, _Life] = {}
        # By node, the newest that has come.
        self._sentinels: dict[str, str] = {}
        self._sink: Sink | None = None
        self._ranks_per_replica = program.template.elastic.ranks_per_replica
        self._watch_of_nodes: asyncio.Task[None] | None = None

    async def open(self, sink: Sink) -> tuple[str, int]:
        self._sink = sink
        address = await self._listener.open(self._hear)
        self._store, port = open_store(self._host)
        self.tenure.publish(address)
        self._watch_of_nodes = asyncio.create_task(ray_nodes.watch(self._hear, self._need(), self._ranks_per_replica))
        return self._host, port

    async def adopt(self, past: Past) -> frozenset[str] | None:
        run = self._program.template.run
        prefix, controller = rank_name(run, ""), controller_name(run)
        listed = await asyncio.to_thread(ray.util.list_named_actors, all_namespaces=True)
        names = {entry["name"] for entry in listed if entry["namespace"] == NAMESPACE}
        found = {name.removeprefix(prefix) for name in names if name.startswith(prefix) and name != controller}
        for incarnation in found:
            with contextlib.suppress(ValueError):
                actor = ray.get_actor(rank_name(run, incarnation), namespace=NAMESPACE)
                # It answers when the one long call of its life has returned; whose call that was does not matter.
                watch = asyncio.create_task(self._watch(incarnation, actor, actor.alive.remote()))
                self._lives[incarnation] = _Life(actor, watch)
        return frozenset(self._lives)

    @property
    def address(self) -> tuple[str, int] | None:
        """Where the controller listens, once it does."""
        return self._listener.address

    @property
    def tied(self) -> bool:
        """Whether a driver has tied its leash."""
        return self._listener.tied

    def start(
        self, incarnation: str, seat: Seat | None, avoid: frozenset[str] = frozenset(), node: str | None = None
    ) -> None:
        first, *others = ray_nodes.preferences(avoid, node)
        spread = self._scaling.placement is Placement.SPREAD
        resources = dict(self._scaling.resources)
        memory = resources.pop("memory", None)
        actor = (
            ray.remote(RankActor)
            .options(
                name=rank_name(self._program.template.run, incarnation),
                namespace=NAMESPACE,
                lifetime="detached",
                max_restarts=0,
                max_task_retries=0,
                num_cpus=self._scaling.cpus_per_rank,
                num_gpus=self._scaling.gpus_per_rank,
                memory=memory,
                resources=resources,
                scheduling_strategy="SPREAD" if spread else "DEFAULT",
                label_selector=first,
                fallback_strategy=[{"label_selector": labels} for labels in others],
                runtime_env=self._runtime_env or None,
            )
            .remote()
        )
        spec = replace(self._program.template, incarnation=incarnation, seat=seat, directory=self.tenure.directory)
        ref = actor.run.remote(spec, self._program.train)
        self._lives[incarnation] = _Life(actor, asyncio.create_task(self._watch(incarnation, actor, ref)))

    async def room(self) -> Mapping[str, int]:
        return await asyncio.to_thread(ray_nodes.store_room)

    def start_vault(self, order: StartVault) -> None:
        # It reserves nothing: Ray 2.60 ends the whole raylet when an actor that has reserved object store memory ends.
        held = node_actors.options(self._program.template.run, order.incarnation, order.node, self._runtime_env)
        actor = ray.remote(VaultActor).options(**held).remote()
        ref = actor.run.remote(vault_spec(self._program, order, self.tenure.directory))
        watch = asyncio.create_task(self._watch(order.incarnation, actor, ref))
        self._lives[order.incarnation] = _Life(actor, watch)

    def start_sentinel(self, incarnation: str, node: str) -> None:
        template = self._program.template
        spec = SentinelSpec(incarnation, node, template.token, self.tenure.directory, template.elastic.timeouts)
        held = node_actors.options(template.run, incarnation, node, self._runtime_env)
        actor = ray.remote(SentinelActor).options(**held).remote()
        watch = asyncio.create_task(self._watch(incarnation, actor, actor.run.remote(spec)))
        self._lives[incarnation] = _Life(actor, watch)

    def send(self, incarnation: str, message: object) -> None:
        self._listener.send(incarnation, message)

    def kill(self, incarnation: str) -> None:
        life = self._lives.get(incarnation)
        if life is None:
            return
        # A signal is direct; Ray first asks, and a stopped process does not answer for 5 s.
        if life.process is not None:
            with contextlib.suppress(psutil.Error):
                life.process.kill()
        elif life.node in self._sentinels:
            self._listener.send(self._sentinels[life.node], Strike(incarnation))
        ray.kill(life.actor, no_restart=True)

    async def close(self, timeout: float) -> list[str]:
        self._leave_nodes()
        for incarnation in self._lives:
            # Vaults and sentinels hold nothing that outlives the run; a rank that is still starting, or has found no
            # room, was not told that it is over.
            if not incarnation[0].isdigit() or incarnation not in self._listener.known:
                self.kill(incarnation)
        watches = [life.watch for life in self._lives.values()]
        if watches:
            await asyncio.wait(watches, timeout=timeout)
        for life in self._lives.values():
            ray.kill(life.actor, no_restart=True)
        confirmed = await asyncio.gather(*(self._gone(life, timeout) for life in self._lives.values()))
        await self.abandon()
        return [incarnation for incarnation, gone in zip(self._lives, confirmed, strict=True) if not gone]

    async def abandon(self) -> None:
        self._leave_nodes()
        for life in self._lives.values():
            life.watch.cancel()
        await self._listener.close()
        self._store = None

    def _leave_nodes(self) -> None:
        if self._watch_of_nodes is not None:
            self._watch_of_nodes.cancel()

    def _need(self) -> dict[str, float]:
        """What a rank reserves, as Ray names it."""
        held = {"CPU": self._scaling.cpus_per_rank, "GPU": self._scaling.gpus_per_rank}
        return {**held, **self._scaling.resources}

    def _hear(self, event: Event) -> None:
        assert self._sink is not None
        match event:
            case Heard(incarnation, Hello() | VaultHello() | SentinelHello() as hello) if incarnation in self._lives:
                life = self._lives[incarnation]
                life.node = hello.node
                if hello.node == self._node:
                    with contextlib.suppress(psutil.Error):
                        life.process = psutil.Process(hello.pid)
                if isinstance(hello, SentinelHello):
                    self._sentinels[hello.node] = incarnation
        self._sink(event)

    async def _watch(self, incarnation: str, actor: Any, ref: Any) -> None:
        """The rank's one long call ends when the rank does."""
        while True:
            try:
                await ref
                cause = "its process ended"
            except ActorUnavailableError:
                # Not a death: the heartbeat decides whether it is one.
                await asyncio.sleep(0.2)
                ref = actor.alive.remote()
                continue
            except ActorDiedError as error:
                cause = _why(error)
            except Exception as error:
                cause = describe(error)
            await self._listener.report_end(incarnation, cause)
            return

    @staticmethod
    async def _gone(life: _Life, timeout: float) -> bool:
        try:
            await asyncio.wait_for(_resolve(life.actor.alive.remote()), timeout)
        except (ActorDiedError, ActorUnavailableError):
            # Ray calls an actor dead a moment before its process is.
            return life.process is None or await _ended(life.process, timeout)
        except ActorUnschedulableError:
            # Its node went before it came to be.
            return True
        except TimeoutError:
            return False
        return False


async def _resolve(ref: Any) -> Any:
    return await ref


async def _ended(process: psutil.Process, timeout: float) -> bool:
    """Whether the process is gone within ``timeout`` seconds; one that takes over half of them is killed."""
    started = asyncio.get_running_loop().time()
    with contextlib.suppress(psutil.NoSuchProcess):
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            waited = asyncio.get_running_loop().time() - started
            if waited > timeout:
                return False
            if waited > timeout / 2:
                process.kill()
            await asyncio.sleep(0.01)
    return True


def _why(error: ActorDiedError) -> str:
    """Ray's explanation of a death, without its advice."""
    text = " ".join(str(error).split())
    found = re.search(r"exit type: (\w+) .*?exit detail: (.*?)(?: Some common causes|$)", text)
    return f"its actor died ({found[1]}: {found[2]})" if found else f"its actor died ({text[:200]})"

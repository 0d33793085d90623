"""A training rank: the user's function on the calling thread, the control connection on its own."""

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ...conf.chaos import FaultPoint
from ...conf.elastic import Reduction
from ...conf.errors import DataError, EverstepError, HandoverError, LoopError, NonFiniteError, ProbeError
from ...policies.workload import workload_policy
from ...policies.world import Position, World
from ..faults import Chaos
from ..link import Link
from ..messages import (
    FaultFired,
    Fenced,
    Finished,
    FromRank,
    Heartbeat,
    Hello,
    Hold,
    Joined,
    Open,
    Ping,
    Prepare,
    Raised,
    Ready,
    Release,
    Restore,
    Resumed,
    Serving,
    ToRank,
)
from ..node.vault_messages import VAULT, Withdraw
from ..saved.storage import Storage
from ..saving_messages import Cadence, Stored
from .census import Wish
from .communicator import Communicator, build
from .context import RankContext
from .environment import fingerprint, prepare, yield_to_control
from .groups import Groups
from .handover import Handover
from .ledger import Ledger, Released, Rewound
from .order import mix
from .progress import Board
from .rendezvous import StoreClients
from .restore import read, read_from_vaults
from .rng import seed_everything
from .snapshots import Delivery, Saved, Snapshots
from .spec import RankSpec
from .state import refuse_scalers
from .to_storage import ToStorage
from .to_vaults import ToVaults
from .trace import Trace
from .transaction import ProtocolError

TrainFunction = Callable[[RankContext], None]
# What another rank would do in the same way: giving the microbatch away would only lose a second rank.
_FINAL = (LoopError, DataError, NonFiniteError, ProtocolError)

# What is said again to a controller that has taken over, the newest of each kind.
_LASTING = (Ready, Joined, Resumed, Stored, Raised, Finished)


class RankProcess:
    """One life of a rank in this process."""

    def __init__(self, spec: RankSpec) -> None:
        self._spec = spec
        self.incarnation = spec.incarnation
        self.max_world = spec.max_world
        self.weight_unit = spec.weight_unit
        self._finished = False
        self._released = threading.Event()
        self.board = Board()
        self.device = torch.device(spec.device)
        prepare(self.device, spec.threads, Reduction(spec.elastic.reduction))
        refuse_scalers()
        timeouts = spec.elastic.timeouts
        assert spec.directory is not None, "the cluster says where controllers are found"
        self.link = Link(spec.directory, spec.token, self._introduction, self._on_message, timeouts.heartbeat)
        self._hello = Hello(self.incarnation, os.getpid(), spec.node, fingerprint(self.device), spec.seat)
        self._said: dict[type[FromRank], FromRank] = {}
        self._clients = StoreClients(timeouts.build)
        self.chaos = Chaos(spec.elastic.chaos, spec.seat, self._announce, spec.number)
        self.groups = Groups(
            self._build, self._on_built, lambda generation, error: self.ledger.abandon(generation, error)
        )
        self.ledger = Ledger(
            spec.incarnation,
            self.say,
            self.groups,
            workload_policy(spec.elastic.sharing, spec.max_world // spec.elastic.ranks_per_replica),
            before_report=lambda: self.chaos.at(FaultPoint.IN_REPORT),
        )
        self.storage = Storage(spec.saved, spec.elastic.timeouts.storage) if spec.saved else None
        self.to_vaults = ToVaults(spec.incarnation, spec.token, lambda: self.link.host, self.say)
        self.savers = self._savers()
        self.context = self._fresh_context()
        self.trace = Trace(spec.trace, spec.incarnation)

    def run(self, train: TrainFunction) -> None:
        """Train to the end, or say why not. Returns when the controller has released the rank."""
        spec = self._spec
        timeouts = spec.elastic.timeouts
        self.link.open(timeouts.start)
        self.handover = Handover(
            self.ledger,
            self._clients,
            self.link.host,
            spec.token,
            timeouts,
            self.chaos,
            lambda: self.context.portable_state(),
        )
        self.link.beat(timeouts.heartbeat_interval, self._heartbeat)
        yield_to_control()
        try:
            while not self._trained(train):
                self.context.close()
                self.context = self._fresh_context(self.context)
        except Released:
            # Whatever it has recorded, those who stay have too.
            pass
        except BaseException as error:
            self.say(self.context.heartbeat(last=True))
            self.say(self._raised(error))
            self._finished = True
            self._await_release()
        self.groups.leave()
        self.link.close(patience=timeouts.probe)

    def _await_release(self) -> None:
        """Until a controller has heard of the end; ended by Fenced or the orphan time-out as well."""
        timeouts = self._spec.elastic.timeouts
        self._released.wait(timeouts.finish + timeouts.recovery)

    def _savers(self) -> tuple[Snapshots, ...]:
        """Where states are saved, and how often; alike on all ranks."""
        elastic, savers = self._spec.elastic, []
        if self.storage is not None and elastic.checkpoint_every != 0:
            storing = ToStorage(self.incarnation, self.storage, self.say)
            savers.append(self._saver("checkpoint", storing, elastic.checkpoint_every))
        if elastic.snapshots:
            # What is in memory ends with the run, so the last state of all is not waited for.
            savers.append(self._saver("snapshot", self.to_vaults, elastic.snapshot_every, ends=False))
        return tuple(savers)

    def _saver(self, name: str, delivery: Delivery, every: int | None, ends: bool = True) -> Snapshots:
        def tell(reason: str) -> None:
            self.say(Cadence(self.incarnation, name, reason))

        return Snapshots(self.incarnation, delivery, every, self.device, self.chaos, name, ends, tell)

    def expect(self, state_bytes: int) -> None:
        """The state has so many bytes: have memory for this rank's share, before the first snapshot is taken."""
        if self._spec.elastic.snapshots:
            self.savers[-1].warm(state_bytes // self.max_world)

    def wishes(self) -> tuple[Wish, ...]:
        """By where states are saved, what this rank says of it in the census of a step."""
        return tuple(saver.wish() for saver in self.savers)

    def save(
        self, step: int, last: bool, world: World, read_state: Callable[[], Saved], wishes: tuple[Wish, ...]
    ) -> None:
        """Begin to save the state after ``step`` steps, wherever it is due."""
        for saver, wish in zip(self.savers, wishes, strict=True):
            if saver.due(step, last, world, wish):
                saver.take(step, world, read_state, self._spec.elastic.timeouts.finish / 2 if last else 0.0)

    def settle(self) -> None:
        """Wait until nothing reads the state any more: it is about to be changed."""
        for saver in self.savers:
            saver.settle()

    def went_back(self, restore: Restore) -> None:
        """How often everybody had to go back says how often saving pays."""
        for saver in self.savers:
            saver.cadence.setbacks = restore.times

    def saved(self, restore: Restore) -> Saved:
        """The state that everybody goes back to.

        Raises:
            SavedStateError: it cannot be read, or is not whole.
        """
        self.went_back(restore)
        if restore.source == VAULT:
            return read_from_vaults(restore.copies, restore.step, self._spec.token)
        return read(self.storage, restore.step)

    def say(self, message: FromRank) -> None:
        """To the controller; never waits. What a later one must know as well is kept."""
        if isinstance(message, _LASTING):
            self._said[type(message)] = message
        self.link.send(message)

    def _introduction(self) -> list[FromRank]:
        """What a controller must know of this rank, whatever an earlier one was told."""
        said = dict(self._said)
        ends = [said[kind] for kind in (Raised, Finished) if kind in said]
        last = [self.context.heartbeat(last=True)] if ends else []
        told = [self._serving(), said.get(Ready), self.ledger.again(), *map(said.get, (Joined, Resumed, Stored))]
        standing = self.to_vaults.standing
        return [self._hello, *(message for message in told if message is not None), *standing, *last, *ends]

    def _serving(self) -> Serving | None:
        serving, joined = self.ledger.serving(), self._said.get(Joined)
        if serving is None:
            return None
        # Who is not in its group yet, or takes its state from a peer, waits at a meeting place that may be gone.
        there = isinstance(joined, Joined) and joined.generation == serving.world.generation
        transaction = self.ledger.transaction
        return replace(serving, joined=there and (not transaction.lacks or transaction.restore is not None))

    def _trained(self, train: TrainFunction) -> bool:
        """Call the training function, and stay until nothing more is wanted; False if it is to be called again."""
        seed_everything(mix(self._spec.elastic.seed))
        try:
            train(self.context)
            end = self._finish()
            self._finished = True
            timeouts = self._spec.elastic.timeouts
            # Ended by Release or Fenced, or by the orphan time-out when the controller is gone.
            while not self.ledger.await_release(end.generation, timeouts.finish + timeouts.recovery):
                # What was said in an earlier generation may be of before everybody went back.
                end = replace(end, generation=self.ledger.stands())
                self.say(end)
        except Rewound:
            self._finished = False
            return False
        return True

    def _fresh_context(self, before: RankContext | None = None) -> RankContext:
        spec = self._spec
        return RankContext(self, spec.config, spec.elastic, spec.seat, self.device, before)

    def _finish(self) -> Finished:
        run = self.context.run
        if run is None:
            raise LoopError("the training function returned without calling ctx.begin: there was no step to take")
        if not run.finished:
            raise LoopError(
                f"the training function left the step loop at step {run.applied + 1} of {run.steps}: a lone break or "
                "return would leave the other ranks waiting"
            )
        for saver in self.savers:
            # The last state is worth some waiting; what cannot be written was told of.
            saver.finish(self._spec.elastic.timeouts.finish / 2)
        self.say(self.context.heartbeat(last=True))
        end = Finished(
            self.incarnation,
            self.ledger.stands(),
            self.context.weights_sha256(),
            self.context.loss,
            run.applied + 1,
            self.context.computed,
            self.context.metrics(),
            self.context.state_sha256(),
        )
        self.say(end)
        return end

    def _raised(self, error: BaseException) -> Raised:
        run = self.context.run
        step = run.current if run else None
        under_way = step.microbatch_under_way if step else None
        # Two ranks that compute wrong bits, or get no state, are two faults, not one of the training function.
        alone = f" on {self.incarnation}" if isinstance(error, ProbeError | HandoverError) else ""
        frames = traceback.extract_tb(error.__traceback__)
        last = frames[-1] if frames else None
        place = f"{Path(last.filename).name}:{last.lineno}" if last else "unknown place"
        text = str(error).splitlines()[0] if str(error) else ""
        return Raised(
            self.incarnation,
            self.ledger.transaction.position if run else Position(0),
            under_way[0] if under_way else None,
            under_way[1] if under_way else (),
            f"{type(error).__name__} at {place}{alone}",
            text if isinstance(error, EverstepError) else f"{type(error).__name__}: {text} ({place})",
            "".join(traceback.format_exception(error)),
            isinstance(error, _FINAL),
        )

    def _heartbeat(self) -> Heartbeat:
        self._end_if_orphaned()
        return self.context.heartbeat()

    def _on_message(self, message: ToRank) -> None:
        try:
            self._obey(message)
        except Exception as error:
            # Without its control thread a rank would train on and answer nobody.
            self.say(self._raised(error))
            os._exit(1)

    def _obey(self, message: ToRank) -> None:
        match message:
            case Ping(recorded, wanted, kept):
                self.context.history.acknowledge(recorded, wanted, kept)
            case Prepare():
                self.ledger.prepare(message)
            case Hold(store=store):
                self.ledger.hold(message)
                if store is not None:
                    # Whoever waits has the time that is short when a generation opens.
                    self._clients.prepare(*store)
            case Open():
                if self.ledger.open(message):
                    if message.restore is not None:
                        # Nobody may be told of these steps as they were: they are taken once more.
                        self.context.history.begin(message.position.step, message.world.generation)
                    self.handover.open(message)
            case Withdraw():
                self.to_vaults.withdraw(message)
            case Fenced(reason):
                print(f"everstep: {self._title} ends: {reason}", file=sys.stderr, flush=True)
                os._exit(1)
            case Release():
                self._released.set()
                self.ledger.release()
                if not self._finished:
                    # A spare, or one that leaves: nothing of it is needed, whatever its training thread is at.
                    grace = threading.Timer(self._spec.elastic.timeouts.confirm, os._exit, (0,))
                    grace.daemon = True
                    grace.start()

    def _end_if_orphaned(self) -> None:
        """Training goes on without a controller, but not for ever."""
        if time.monotonic() - self.link.last_heard > self._spec.elastic.timeouts.orphan:
            os._exit(1)

    def _build(self, message: Open) -> Communicator:
        if message.world.generation.number > 1:
            self.chaos.at(FaultPoint.IN_REBUILD)
        timeouts = self._spec.elastic.timeouts
        member = message.world.member(self.incarnation)
        assert member is not None
        peers = [peer.incarnation for peer in message.world.peers(member.seat.coordinate)]
        return build(
            message.store,
            message.world.generation,
            peers.index(self.incarnation),
            len(peers),
            host=self.link.host,
            device=self.device,
            # Newcomers come to their first collective when they have the state.
            collective_timeout=timeouts.recovery if message.sources else timeouts.collective,
            build_timeout=timeouts.build,
            clients=self._clients,
            board=self.board,
        )

    def _on_built(self, generation: Any, seconds: float) -> None:
        self.say(Joined(self.incarnation, generation, seconds))

    @property
    def _title(self) -> str:
        seat = self._spec.seat
        return f"rank {seat}" if seat else f"rank {self.incarnation}"

    def _announce(self, fault: str, evidence: str) -> None:
        self.say(FaultFired(self.incarnation, fault, evidence))

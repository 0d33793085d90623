"""Feeds the machine with events and carries its actions out. It decides nothing itself."""

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..actors.messages import Open, Ping, StepRecord
from ..actors.node.vault_messages import PREFIX, VAULT
from ..actors.saving_messages import Stored, Unreadable
from ..conf.elastic import ElasticConfig
from ..policies.retention import PINNED, Marks
from .checkpoints import Checkpoints
from .cluster import Cluster
from .inbox import Inbox
from .journal import Journal
from .machine.events import (
    Action,
    Ended,
    EndRun,
    Event,
    Found,
    Heard,
    KillRank,
    NodeDraining,
    Publish,
    Record,
    Resize,
    Saved,
    Send,
    Started,
    StartRank,
    StartSentinel,
    StopRequested,
    StopSentinel,
    StoreOpened,
    Tick,
    TookOver,
    Undo,
    Warned,
)
from .machine.look import failures, look
from .machine.memory import inherited, note
from .machine.past import Past
from .machine.resuming import identity
from .machine.settings import Settings
from .machine.state import Standing, State
from .machine.transition import advance
from .machine.trust import marks
from .records.publisher import Publisher
from .records.sink import Sink
from .tenure import Deposed
from .vault_copies import KillVault, Tell
from .vault_fleet import StartVault
from .vaults import Orders, Vaults
from .view import Phase, RunState

CLOSE_TIMEOUT_S = 10.0
_LOOK_AGAIN_S = 0.01


class Controller:
    """One controller life.

    Args:
        settings: of the run.
        cluster: where ranks live, and the term of this life.
        journal: what happened.
        sinks: what takes the records of steps.
        checkpoints: of the run, if it has a storage.
        elastic: of the run, for snapshots in memory; None for none.
        past: what earlier lives have left; None if this is the first one.
    """

    def __init__(
        self,
        settings: Settings,
        cluster: Cluster,
        journal: Journal,
        sinks: Sequence[Sink] = (),
        checkpoints: Checkpoints | None = None,
        past: Past | None = None,
        elastic: ElasticConfig | None = None,
    ) -> None:
        self._state = State(settings)
        self._cluster = cluster
        self._tenure = cluster.tenure
        self._journal = journal
        self._past = past
        self._events = Inbox()
        self._publisher = Publisher(sinks, self._warn, self._tenure.holds)
        self._checkpoints = checkpoints
        self._elastic = elastic if elastic is not None and elastic.snapshots else None
        self._vaults: Vaults | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._marks = Marks()
        self._over = False
        self._last: list[Action] = []
        self.leftovers: list[str] = []

    def state(self) -> RunState:
        """One look at the run, at any moment."""
        seen = look(self._state, time.monotonic())
        if self._vaults is None:
            return seen
        metrics = {**seen.metrics, **self._vaults.metrics} if seen.metrics else seen.metrics
        return replace(seen, snapshots=self._vaults.line, metrics=metrics)

    def events(self) -> list[Mapping[str, object]]:
        """Everything in the journal so far."""
        return list(self._journal.entries)

    def records(self, since: int = 0) -> list[StepRecord]:
        """The newest records of steps, from ``since`` on."""
        return self._publisher.since(since)

    def stop(self, reason: str) -> None:
        """End the run from outside."""
        self._events.put_nowait(StopRequested(reason))

    def scale(self, replicas: int) -> str | None:
        """Have so many replicas from now on; returns why not, if that cannot be."""
        minimum = self._state.settings.minimum
        if replicas < minimum:
            return f"{replicas} replicas are fewer than the minimum of {minimum}"
        self._events.put_nowait(Resize(replicas))
        return None

    def drain(self, node: str, reason: str) -> None:
        """Have everybody leave a node; that is no failure."""
        self._events.put_nowait(NodeDraining(node, reason))

    async def run(self) -> RunState:
        """From the first rank's start, or from taking over, to the last one's end.

        Raises:
            Deposed: a newer controller has taken over; nothing was touched since.
        """
        self._loop = asyncio.get_running_loop()
        host, port = await self._cluster.open(self._events.put_nowait)
        self._events.put_nowait(StoreOpened(host, port))
        watching = [asyncio.create_task(self._tick()), asyncio.create_task(self._guard())]
        deposed = False
        try:
            await self._begin()
            while not self._over:
                event = await self._events.get()
                if isinstance(event, Deposed):
                    raise event
                self._handle(event)
            await asyncio.to_thread(self._publisher.flush, CLOSE_TIMEOUT_S)
            self._tenure.check()
            for action in self._last:
                self._carry_out(action)
        except Deposed:
            deposed = True
            raise
        finally:
            for task in watching:
                task.cancel()
            await (self._leave() if deposed else self._end())
        return self.state()

    async def _begin(self) -> None:
        if self._elastic is not None:
            # Vaults of an earlier life come by themselves.
            patience = time.monotonic() + self._elastic.timeouts.adopt if self._past else 0.0
            room = await self._cluster.room()
            pinned = PINNED * sum(every > 0 for every in self._state.settings.cadences.values())
            self._vaults = Vaults(self._elastic, self._state.settings.lives, room, patience, pinned)
        self._keep(inherited(self._state, self._past) if self._past else self._state)
        if self._past is not None:
            if self._vaults is not None:
                self._vaults.undo(self._past.undone)
            if self._checkpoints is not None:
                await asyncio.to_thread(self._checkpoints.undo_now, self._past.undone)
                await self._recall(self._checkpoints, begun=bool(self._past.generation))
            living = await self._cluster.adopt(self._past)
            if self._past.saved.get(VAULT) and self._vaults is not None:
                known = {name for name, rank in self._past.ranks.items() if not rank.gone}
                await self._hear_vaults(self._vaults, known, living)
            if living is not None:
                # What belongs to nodes has names that begin with a letter.
                living = frozenset(name for name in living if name[0].isdigit())
            # What vaults hold they tell themselves, newer than any journal.
            saved = {source: step for source, step in self._past.saved.items() if source != VAULT}
            self._handle(TookOver(replace(self._past, saved={**saved, **self._state.saved}), living, time.time()))
            return
        found = await asyncio.to_thread(self._checkpoints.newest) if self._checkpoints is not None else None
        if found is not None:
            self._handle(found)
        if not self._over:
            self._handle(Started())

    async def _hear_vaults(self, vaults: Vaults, ranks: set[str], living: frozenset[str] | None) -> None:
        """Wait for vaults to come: if no rank lives, what they hold is what the run goes on from.

        Args:
            ranks: that may live. Without any nobody else is kept waiting, and vaults may take as long as they live.
            living: incarnations that the cluster knows to live, vaults too; None if it knows only of ends.
        """
        coming = None if living is None else {name for name in living if name.startswith(PREFIX)}
        ranks = ranks if living is None else ranks & living
        kept: list[Event] = []
        timeouts, began = self._state.settings.timeouts, time.monotonic()
        while VAULT not in self._state.saved and coming != set():
            if time.monotonic() - began > (timeouts.adopt if ranks else timeouts.orphan):
                break
            await asyncio.sleep(_LOOK_AGAIN_S)
            while not self._events.empty():
                match self._events.get_nowait():
                    case Saved() as event:
                        self._handle(event)
                    case Heard(_, message) as event if vaults.concerns(message):
                        self._handle(event)
                    case Tick() as event:
                        # Else those who have come would take this life for gone.
                        self._order(vaults.hear(event, time.monotonic())[1])
                    case Deposed() as end:
                        raise end
                    case event:
                        if isinstance(event, Ended):
                            ranks -= {event.incarnation}
                            coming = coming and coming - {event.incarnation}
                        kept.append(event)
        for event in kept:
            self._events.put_nowait(event)

    async def _recall(self, checkpoints: Checkpoints, begun: bool) -> None:
        """What an earlier life has saved; or, if it opened nothing, what it would have gone on from."""
        found = await asyncio.to_thread(checkpoints.known if begun else checkpoints.newest)
        if found is not None:
            self._handle(found)

    async def _leave(self) -> None:
        """Ranks, files and results belong to another controller now."""
        await self._cluster.abandon()
        self._publisher.abandon()
        if self._checkpoints is not None:
            self._checkpoints.close(0.0)
        self._journal.close()

    async def _end(self) -> None:
        if self._checkpoints is not None:
            # First: it needs the term, which may end with the cluster.
            succeeded = self._state.phase is Phase.SUCCEEDED
            patience = self._state.settings.timeouts.storage if succeeded else CLOSE_TIMEOUT_S
            if not await asyncio.to_thread(self._checkpoints.close, patience):
                self.warn(f"the newest checkpoint was not published within {patience:g} s: storage does not answer")
        self.leftovers = await self._cluster.close(CLOSE_TIMEOUT_S)
        await asyncio.to_thread(self._publisher.close, failures(self._state), CLOSE_TIMEOUT_S)
        self._hear_last_warnings()
        self._journal.close()

    async def _tick(self) -> None:
        interval = self._state.settings.timeouts.heartbeat_interval
        last = time.monotonic()
        while True:
            await asyncio.sleep(interval)
            now = time.monotonic()
            # Our own pause must not look like everybody else's silence.
            late = now - last - interval
            self._events.put_nowait(Tick(late if late > interval else 0.0))
            last = now

    async def _guard(self) -> None:
        """Notice a newer term also while there is nothing to do; a directory that is slow holds up nobody."""
        while True:
            try:
                await asyncio.to_thread(self._tenure.check)
            except Deposed as end:
                self._events.put_nowait(end)
                return
            await asyncio.sleep(self._state.settings.timeouts.heartbeat_interval)

    def warn(self, text: str) -> None:
        """Say something that went wrong beside the training; before the run, or on its loop."""
        self._events.put_nowait(Warned(text))

    def _warn(self, text: str) -> None:
        self._tell(Warned(text))

    def _tell(self, event: Event) -> None:
        """From any thread; the last words of a sink may come after the end of the loop."""
        with contextlib.suppress(RuntimeError):
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)

    def _hear_last_warnings(self) -> None:
        while not self._events.empty():
            event = self._events.get_nowait()
            if isinstance(event, Warned | Saved):
                self._handle(event)

    def _handle(self, event: Event) -> None:
        if self._vaults is not None and not (isinstance(event, Heard) and self._shut_out(event.incarnation)):
            taken, orders = self._vaults.hear(event, time.monotonic())
            self._order(orders)
            if taken:
                return
        match event:
            case Heard(incarnation, Stored() | Unreadable() as message) if not self._shut_out(incarnation):
                self._hear_of_saved(message)
                return
        before, now = self._state, time.monotonic()
        self._state, actions = advance(before, event, now)
        begun = before.world is not None or bool(self._past and self._past.generation)
        if self._vaults is not None and not begun and self._state.world is not None:
            self._state, actions = self._checked(self._vaults, before, actions, now)
        self._keep(self._state)
        if isinstance(event, TookOver):
            before = inherited(before, event.past, now - event.at)
        if self._state.phase is Phase.SUCCEEDED and before.phase is not Phase.SUCCEEDED:
            # Nobody may be let go before the numbers of the last steps are written down.
            self._last = [*note(before, self._state), *actions]
            self._over = True
            return
        for action in (*note(before, self._state), *actions):
            self._carry_out(action)

    def _keep(self, state: State) -> None:
        """Have the saved states stay to which everybody may have to go back."""
        if (kept := marks(state)) == self._marks:
            return
        self._marks = kept
        if self._vaults is not None:
            self._vaults.keep(kept)
        if self._checkpoints is not None:
            self._checkpoints.keep(kept)

    def _checked(self, vaults: Vaults, before: State, actions: list[Action], now: float) -> tuple[State, list[Action]]:
        """What opens the first generation, unless snapshots do not fit into memory."""
        refusal, orders = vaults.begin()
        if refusal:
            return advance(before, Found(VAULT, 0, refused=refusal), now)
        self._order(orders)
        return self._state, actions

    def _order(self, orders: Orders) -> None:
        for order in orders:
            match order:
                case Tell(incarnation, message):
                    self._cluster.send(incarnation, message)
                case StartVault():
                    self._tenure.check()
                    self._cluster.start_vault(order)
                case KillVault(incarnation):
                    self._cluster.kill(incarnation)
                case _:
                    self._events.put_nowait(order)

    def _shut_out(self, incarnation: str) -> bool:
        """Whether nothing of what this rank says may count any more."""
        rank = self._state.ranks.get(incarnation)
        return rank is not None and rank.standing in (Standing.FENCED, Standing.GONE)

    def _hear_of_saved(self, message: Stored | Unreadable) -> None:
        if self._checkpoints is None:
            return
        if isinstance(message, Stored):
            self._checkpoints.stored(message, identity(self._state), self._tell, self._tenure.holds)
        else:
            self._checkpoints.unreadable(message, self._tell)

    def _write(self, record: Record) -> None:
        for trouble in self._journal.write(record):
            self._events.put_nowait(Warned(trouble))

    def _carry_out(self, action: Action) -> None:
        match action:
            case Send(incarnation, Ping() as ping):
                self._cluster.send(incarnation, replace(ping, kept=self._publisher.kept))
            case Send(incarnation, Open() as message) if self._vaults is not None:
                message, orders = self._vaults.opening(message)
                self._cluster.send(incarnation, message)
                self._order(orders)
            case Send(incarnation, message):
                self._cluster.send(incarnation, message)
            case Record():
                self._write(action)
            case Publish(records):
                self._publisher.publish(records)
            case StartRank(incarnation, seat, avoid, node):
                self._tenure.check()
                # Whoever takes over must know whom to expect.
                facts = {"incarnation": incarnation, "seat": None if seat is None else str(seat)}
                self._write(Record("rank asked for", facts=facts))
                self._cluster.start(incarnation, seat, avoid, node)
            case KillRank(incarnation, _) | StopSentinel(incarnation):
                self._tenure.check()
                self._cluster.kill(incarnation)
            case StartSentinel(incarnation, node):
                self._tenure.check()
                self._cluster.start_sentinel(incarnation, node)
            case Undo(undone):
                if self._checkpoints is not None:
                    self._checkpoints.undo(undone, self._tell)
            case EndRun():
                self._over = True

"""Snapshots in memory, as the controller sees them: it hears events before the machine does, and gives orders."""

from collections.abc import Mapping, Set
from dataclasses import replace

from ..actors.messages import Hello, Open, Ping, Ready
from ..actors.node.vault_messages import VAULT, Offered, Pulled, VaultBeat, VaultHello
from ..actors.saving_messages import Unreadable
from ..conf.elastic import ElasticConfig, SnapshotSpread
from ..policies.retention import Marks, Undone
from .machine.events import (
    Ended,
    Event,
    Heard,
    NodeDraining,
    NodeLost,
    Room,
    Tick,
    TookOver,
    Warned,
)
from .vault_copies import KillVault, Order, Tell, VaultCopies, bytes_by_node
from .vault_fleet import StartVault, VaultFleet

_MIB = 2**20
# Nobody waits for a vault, and one that is given up too early takes its copies along.
_PATIENCE = 4


Orders = list[Order | StartVault]


class Vaults:
    """All vaults of a run, and what they hold.

    Args:
        elastic: how many copies, for how long, and all deadlines.
        lives: part of the names that no other controller life uses.
        room: bytes that snapshots may use, by node; vaults of other nodes look for themselves.
        patience: until when no vault is started, in seconds of ``now``: those of an earlier life come by themselves.
        pinned: how many snapshots may have to stay beside the newest ones, because they are not judged yet, or are the
            newest that are known to be right.
    """

    def __init__(
        self, elastic: ElasticConfig, lives: str, room: Mapping[str, int], patience: float = 0.0, pinned: int = 0
    ) -> None:
        self._elastic = elastic
        most = None if elastic.snapshot_gib is None else int(elastic.snapshot_gib * 2**30)
        held = {node: free if most is None else min(most, free) for node, free in room.items()}
        self._fleet = VaultFleet(lives, elastic.snapshot_copies, held, most)
        self._copies = VaultCopies(elastic.snapshot_copies, elastic.snapshot_keep)
        self._pinned = pinned
        self._ranks: dict[str, str] = {}
        self._patience = patience
        self._state_bytes = 0

    def hear(self, event: Event, now: float) -> tuple[bool, Orders]:
        """What follows from an event, and whether it is of no concern to the machine."""
        match event:
            case Heard(incarnation, message):
                return self._heard(incarnation, message, now)
            case Ended(vault) if vault in self._fleet.vaults:
                return True, [*self._gone([vault], "a vault that had parts of it died"), *self._start(now)]
            case Ended(rank):
                self._ranks.pop(rank, None)
                return False, [*self._copies.rank_gone(rank)]
            case NodeLost(node, _):
                self._fleet.left.add(node)
                return False, self._gone(self._fleet.on(node), "a node that had parts of it was lost")
            case NodeDraining(node, _):
                return False, self._drained({node}, now)
            case TookOver(past):
                return False, self._drained(past.draining, now)
            case Room(_, nodes) if nodes:
                self._copies.nodes = {node.name: node for node in nodes}
                self._fleet.others = set(self._copies.nodes)
                return False, self._start(now)
            case Tick(asleep):
                return False, self._tick(asleep, now)
        return False, []

    @staticmethod
    def concerns(message: object) -> bool:
        """Whether this is what a vault says."""
        return isinstance(message, VaultHello | VaultBeat | Pulled)

    def opening(self, message: Open) -> tuple[Open, Orders]:
        """A generation opens: ranks that go back to a snapshot are told where its parts are."""
        restore = message.restore
        if restore is not None and restore.source == VAULT:
            message = replace(message, restore=replace(restore, copies=self._copies.holdings.where(restore.step)))
        return message, [*self._copies.opened(message.world.generation, restore.step if restore else None)]

    def begin(self) -> tuple[str | None, Orders]:
        """The first generation is about to open: why it must not, or what is not as it was asked for.

        Snapshots that nobody has asked for are left out where there is no room for them.
        """
        elastic, asked = self._elastic, self._elastic.snapshot_every is not None
        few, full = self._too_few_nodes(), self._too_little_room()
        warned: Orders = []
        if full and self._pinned:
            self._pinned, unpinned = 0, full
            full = self._too_little_room()
            self._copies.holdings.marks = Marks()
            text = f"{unpinned}; so none are kept until they are known to be right"
            warned = [] if full else [Warned(text)]
        if few and elastic.snapshot_spread is SnapshotSpread.REFUSE:
            return f"{few}: add nodes, ask for fewer copies, or set elastic.snapshot_spread=degrade", []
        if full and asked:
            return full, []
        if full:
            return None, self._give_up(full)
        return None, [*warned, *([Warned(f"{few}: add nodes, or ask for fewer copies")] if few and asked else [])]

    def undo(self, undone: Undone | None) -> None:
        """For a controller that takes over: what vaults come with must not be among this."""
        self._copies.undo(undone)

    def keep(self, marks: Marks) -> None:
        """Which snapshots stay beside the newest ones, from the next that is whole on."""
        if self._pinned:
            self._copies.holdings.marks = marks

    @property
    def line(self) -> str:
        """What there is, in one line."""
        holdings = self._copies.holdings
        newest, vaults = holdings.newest, len(holdings.holders)
        if self._fleet.closed:
            return "none"
        need, nodes = max(self._need().values(), default=0), len(self._fleet.wanted)
        plan = f"{need / _MIB:.1f} MiB of each of {nodes} nodes"
        if newest is None:
            return f"none yet; they need {plan}"
        steps = ", ".join(map(str, sorted(holdings.manifests)))
        common = f"in common to {newest.peers} ranks" if newest.peers > 1 else "that no other rank has"
        made, wanted = holdings.fewest, self._elastic.snapshot_copies
        made_of = str(made) if made >= wanted else f"{made} of {wanted}"
        return (
            f"steps {steps} in {vaults} vaults; step {newest.step}: {newest.bytes / _MIB:.1f} MiB {common}, in "
            f"{len(newest.parts)} parts with {made_of} copies; they need {plan}"
        )

    def _too_few_nodes(self) -> str | None:
        wanted, nodes = self._elastic.snapshot_copies, len(self._fleet.wanted)
        if wanted <= nodes:
            return None
        return f"elastic.snapshot_copies={wanted} are more than there are nodes: a snapshot has {nodes} of each part"

    def _too_little_room(self) -> str | None:
        """Which node has less memory than snapshots need there; None if all have enough."""
        elastic, fleet = self._elastic, self._fleet
        for node, need in self._need().items():
            room = fleet.room.get(node)
            if room is not None and need > room:
                return (
                    f"snapshots need {need / _MIB:.1f} MiB of node {node} ({self._most} of "
                    f"{self._state_bytes / _MIB:.1f} MiB, {elastic.snapshot_copies} copies over {len(fleet.wanted)} "
                    f"nodes), and it has {room / _MIB:.1f}: start Ray with a larger object store, lower "
                    "elastic.snapshot_keep or elastic.snapshot_copies, or set elastic.snapshot_every=0"
                )
        return None

    def _give_up(self, why: str) -> Orders:
        """Go on without snapshots."""
        vaults = list(self._fleet.vaults)
        self._fleet.closed = True
        orders: Orders = [KillVault(vault) for vault in vaults]
        return [Warned(f"there are no snapshots in memory: {why}"), *orders, *self._copies.close()]

    @property
    def metrics(self) -> dict[str, float]:
        """What it took to have copies."""
        return {"snapshot_got_bytes": float(self._copies.got_bytes), "snapshot_got_s": self._copies.got_seconds}

    def _heard(self, incarnation: str, message: object, now: float) -> tuple[bool, Orders]:
        match message:
            case Hello(node=node):
                self._ranks[incarnation] = node
                self._fleet.of_ranks.add(node)
                return False, self._start(now)
            case Ready(state_bytes=state_bytes):
                self._state_bytes = max(self._state_bytes, state_bytes)
                return False, self._start(now)
            case Offered():
                return True, [*self._copies.offered(message, self._ranks.get(incarnation, ""))]
            case VaultHello():
                self._fleet.heard(incarnation, message.node, now)
                return True, [*self._copies.came(message)]
            case VaultBeat():
                self._fleet.heard(incarnation, None, now)
                return True, []
            case Pulled():
                self._fleet.heard(incarnation, None, now)
                return True, [*self._copies.pulled(message)]
            case Unreadable(source=source) if source == VAULT:
                return True, [*self._copies.unreadable(message.step, message.problem)]
        return False, []

    def _start(self, now: float) -> Orders:
        """Once it is known what they will hold."""
        if not self._state_bytes or now < self._patience:
            return []
        return [*self._fleet.starts(now)]

    def _tick(self, asleep: float, now: float) -> Orders:
        timeouts = self._elastic.timeouts
        self._fleet.forgive(asleep, now)
        silent = self._fleet.silent(now, _PATIENCE * timeouts.heartbeat, timeouts.start)
        orders: Orders = [KillVault(vault) for vault in silent]
        orders += self._gone(silent, "a vault that had parts of it does not answer")
        # The lease: a vault that hears nothing for its orphan time-out ends itself.
        orders += [Tell(vault, Ping()) for vault in sorted(self._copies.holdings.holders)]
        return [*orders, *self._start(now)]

    def _drained(self, nodes: Set[str], now: float) -> Orders:
        """What their vaults hold is given to others, and then they go."""
        self._copies.leaving |= nodes
        self._fleet.left |= nodes
        return [*self._start(now), *self._copies.replan()]

    def _gone(self, vaults: list[str], why: str) -> Orders:
        for vault in vaults:
            self._fleet.vaults.pop(vault, None)
        return [*self._copies.gone(vaults, why)]

    def _need(self) -> Mapping[str, int]:
        elastic = self._elastic
        return bytes_by_node(self._state_bytes, self._fleet.wanted, elastic.snapshot_copies, self._most - 1)

    @property
    def _most(self) -> int:
        """Snapshots that there may be at once, with the one that is being made."""
        return self._elastic.snapshot_keep + self._pinned + 1

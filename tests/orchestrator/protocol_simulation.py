"""The real machine and the real ledger of every rank, in virtual time, under late messages, crashes and stops.

One seed is one run and always the same one. Connections are FIFO, as TCP is, and nothing else is ordered: the control
thread of a rank may run between any two moves of its training thread. A collective completes only if all members have
entered it, and once somebody leaves, any subset of them may still see it complete. Checks look on all the while.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Any

from everstep.actors.messages import FromRank, Heartbeat, Hello, Joined, Open, Ping, ToRank
from everstep.conf.elastic import Timeouts
from everstep.conf.errors import CommunicatorError
from everstep.orchestrator.machine import events
from everstep.orchestrator.machine.state import Settings, State
from everstep.orchestrator.machine.transition import advance
from everstep.policies.workload import Balanced
from everstep.policies.world import Generation

from .protocol_checks import Checks, Violation
from .simulated_loop import Loop
from .simulated_rank import Collective, Group, Rank

TIMEOUTS = Timeouts()
DEADLINE_S = 400.0


class Simulation:
    """One run from one seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.seed = seed
        self.now = 0.0
        self.log: list[str] = []
        self.seen: Counter[str] = Counter()
        size = self.random.randint(2, 5)
        self.loop = Loop(seed)
        self.checks = Checks(self.loop)
        skip_poison = self.chance(0.7)
        names = tuple(f"r{place}" for place in range(size))
        self.state = State(Settings("simulated", 1, names, 1, Balanced(), TIMEOUTS, skip_poison=skip_poison))
        self.ranks = {name: Rank(self, name) for name in names}
        self.groups: dict[Generation, Group] = {}
        self.over = False
        self.asleep_until = 0.0
        self.faults = self._plan(names)
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = 0
        self._inbound: dict[str, float] = {}
        self._outbound: dict[str, float] = {}

    # --- chance

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def short(self) -> float:
        return self.random.choice((0.0, 0.001, 0.01, 0.05)) * self.random.random()

    def long(self) -> float:
        return 0.3 * self.random.random()

    def latency(self) -> float:
        return self.random.random() * (0.8 if self.chance(0.05) else 0.02)

    def _plan(self, names: tuple[str, ...]) -> list[tuple[str, str, int, str]]:
        """(point, rank, n-th time, kind); points are hit more often by those who are about to vote or to report."""
        points = ("start", "compute", "sum", "vote", "voted", "apply", "report", "open", "built", "finished")
        kinds = ("crash", "crash", "crash", "stop", "nap", "cut", "raise", "glitch", "doze")
        planned = []
        for _ in range(self.random.randint(0, len(names) + 1)):
            planned.append(
                (self.random.choice(points), self.random.choice(names), self.random.choice((0, 0, 0, 1, 2)),
                 self.random.choice(kinds))
            )  # fmt: skip
        return planned

    # --- the run

    def run(self) -> State:
        """To the end, or to a violation."""
        try:
            self._tell(events.Started())
            self._tell(events.StoreOpened("host", 1))
            self.at(TIMEOUTS.heartbeat_interval, self._tick)
            while not self.over:
                if self.now > DEADLINE_S:
                    raise Violation(f"the run does not end: {self.state.phase}, {self.state.recovery}")
                self.now, _, happen = heappop(self._queue)
                happen()
                for rank in self.ranks.values():
                    if rank.waiting is not None:
                        self._resume(rank)
            self.saw(str(self.state.phase))
            self.checks.end(self.state, self.ranks)
        except Exception as error:
            story = "\n".join(self.log[-40:])
            raise Violation(f"seed {self.seed} at {self.now:.3f}: {type(error).__name__}: {error}\n{story}") from error
        return self.state

    def at(self, delay: float, happen: Callable[[], None]) -> None:
        self._put(self.now + delay, happen)

    def _put(self, when: float, happen: Callable[[], None]) -> None:
        self._sequence += 1
        heappush(self._queue, (when, self._sequence, happen))

    def _in_order(self, ends: dict[str, float], name: str) -> float:
        """When the next bytes of a connection arrive: never before those that were sent earlier."""
        ends[name] = max(ends.get(name, 0.0), self.now + self.latency())
        return ends[name]

    def saw(self, what: str) -> None:
        self.seen[what] += 1

    def note(self, text: str) -> None:
        self.log.append(f"{self.now:8.3f} {text}")

    def _resume(self, rank: Rank) -> None:
        """Move a training thread on for as long as nothing holds it."""
        while rank.alive and not rank.frozen and rank.waiting is not None and rank.waiting():
            rank.waiting = None
            wait = next(rank.thread, None)
            if callable(wait):
                rank.waiting = wait
            elif wait is not None:
                self.at(wait, lambda: self._wake_thread(rank))

    def _wake_thread(self, rank: Rank) -> None:
        rank.waiting = lambda: True

    # --- the controller and its cluster

    def _tell(self, event: Any) -> None:
        before = self.state.world
        self.state, actions = advance(self.state, event, self.now)
        if not isinstance(event, events.Tick) and not (
            isinstance(event, events.Heard) and isinstance(event.message, Heartbeat)
        ):
            said = event.message if isinstance(event, events.Heard) else event
            self.note(f"controller hears {said}")
        world = self.state.world
        if world is not before and before is not None and world is not None and world.generation <= before.generation:
            raise Violation(f"generation {world.generation} after {before.generation}")
        self.seen["deathless"] += self.state.deathless > 0
        if world is not before and before is not None:
            self._look_at_opening(actions)
        for action in actions:
            match action:
                case events.StartRank(name, _):
                    self.at(self.latency(), lambda name=name: self._start(self.ranks[name]))  # type: ignore[misc]
                case events.Send(name, message):
                    self._to_rank(self.ranks[name], message)
                case events.KillRank(name, _):
                    rank = self.ranks[name]
                    # Who is cut off may be out of reach for good; its lease ends it. Who is stopped takes its time.
                    if rank.connected or self.chance(0.5):
                        delay = self.latency() + (6.0 * self.random.random() if rank.frozen else 0.0)
                        self.at(delay, lambda rank=rank: self.vanish(rank))  # type: ignore[misc]
                case events.Record(what):
                    self.saw(what)
                case events.EndRun():
                    self.over = True

    def _look_at_opening(self, actions: Sequence[events.Action]) -> None:
        """Note what kind of loss this was."""
        sends = (action.message for action in actions if isinstance(action, events.Send))
        opened = next(message for message in sends if isinstance(message, Open))
        assert self.state.recovery is not None
        reports = self.state.recovery.reports
        begun = {reports[name].work for name in opened.world.incarnations if reports[name].position == opened.position}
        if opened.work is None:
            self.saw("nobody had begun")
        else:
            self.saw(f"opened in {opened.work.kind}")
            self.saw("some had begun" if None in begun else "all had begun")
        if opened.poison:
            self.saw("opened with poison")

    def _hear(self, event: Any) -> None:
        """The controller hears nothing while it sleeps."""
        if self.now < self.asleep_until:
            self._put(self.asleep_until, lambda: self._hear(event))
        elif not self.over:
            self._tell(event)

    def _tick(self) -> None:
        late = max(0.0, self.asleep_until - self.now)
        interval = TIMEOUTS.heartbeat_interval
        self.at(late, lambda: self._tell(events.Tick(late if late > interval else 0.0)))
        self.at(late + interval, self._tick)

    def _start(self, rank: Rank) -> None:
        rank.alive = True
        rank.heard = self.now
        rank.thread = rank.train()
        self.strike("start", rank)
        rank.say(Hello(rank.name, 1, "node"))
        rank.waiting = lambda: True
        self._beat(rank)

    def _beat(self, rank: Rank) -> None:
        if not rank.alive:
            return
        if not rank.frozen:
            if self.now - rank.heard > TIMEOUTS.orphan:
                self.saw("orphaned")
                self.vanish(rank)
                return
            rank.say(Heartbeat(rank.name, rank.ledger.transaction.position, "training"))
        self.at(TIMEOUTS.heartbeat_interval, lambda: self._beat(rank))

    def to_controller(self, rank: Rank, message: FromRank) -> None:
        if rank.alive and rank.connected:
            self._put(self._in_order(self._inbound, rank.name), lambda: self._hear(events.Heard(rank.name, message)))

    def _to_rank(self, rank: Rank, message: ToRank) -> None:
        if not isinstance(message, Ping):
            self.note(f"to {rank.name}: {type(message).__name__} {getattr(message, 'generation', '')}")
        if rank.connected:
            self._put(self._in_order(self._outbound, rank.name), lambda: self._deliver(rank, message))

    def _deliver(self, rank: Rank, message: ToRank) -> None:
        if rank.alive and rank.connected:
            if rank.deferred or rank.frozen:
                rank.deferred.append(message)
            else:
                rank.hear(message)

    # --- faults

    def strike(self, point: str, rank: Rank) -> None:
        for fault in self.faults:
            where, name, count, kind = fault
            if (where, name) == (point, rank.name) and rank.alive and not rank.frozen:
                self.faults.remove(fault)
                if count:
                    self.faults.append((where, name, count - 1, kind))
                else:
                    self._hit(rank, kind, point)
                return

    def _hit(self, rank: Rank, kind: str, point: str) -> None:
        self.note(f"{kind} of {rank.name} at {point}")
        self.saw(f"{kind} at {point}")
        if kind == "glitch":
            generation = rank.ledger.transaction.generation
            if generation is not None and self.seen["glitches"] < 2:
                self.saw("glitches")
                self.leave(rank.name, generation)
            return
        if kind == "doze":
            self.asleep_until = self.now + 10.0 * self.random.random()
            return
        rank.hit = True
        if kind == "crash":
            self.vanish(rank)
        elif kind in ("stop", "nap"):
            rank.frozen = True
            # A stopped rank may be woken before, just as, or long after it is given up.
            pause = 12.0 * self.random.random() if kind == "nap" else 60.0
            self.at(pause, lambda: self._thaw(rank))
        elif kind == "cut":
            self._lose_connection(rank)
        elif kind == "raise":
            rank.raising = True

    def _thaw(self, rank: Rank) -> None:
        if rank.alive:
            self.note(f"{rank.name} wakes")
            self.saw("woke")
            rank.frozen = False
            # Which of its threads runs first is chance: what it was told may be read late.
            self.at(self.short(), lambda: self._catch_up(rank))

    def _catch_up(self, rank: Rank) -> None:
        while rank.deferred and rank.alive and not rank.frozen:
            rank.hear(rank.deferred.pop(0))

    def vanish(self, rank: Rank) -> None:
        """The process is gone; what it has sent still arrives, then the end of its connection, then its own."""
        if not rank.alive:
            return
        self.note(f"{rank.name} is gone")
        rank.alive = False
        for generation in list(self.groups):
            self.leave(rank.name, generation)
        self._lose_connection(rank)
        self.at(self.latency() + 1.0, lambda: self._hear(events.Ended(rank.name, "its process ended")))

    def _lose_connection(self, rank: Rank) -> None:
        if rank.connected:
            rank.connected = False
            end = events.Ended(rank.name, "its connection ended")
            self._put(self._in_order(self._inbound, rank.name), lambda: self._hear(end))

    # --- groups

    def arrive(self, rank: Rank, message: Open) -> None:
        """A member begins to build; when all have, each is done in its own time, if nobody leaves before."""
        generation = message.world.generation
        group = self.groups.setdefault(generation, Group(message.world.incarnations))
        if group.members != message.world.incarnations:
            raise Violation(
                f"generation {generation} was opened to {group.members} and to {message.world.incarnations}"
            )
        group.arrived.append(rank.name)
        self.at(TIMEOUTS.build, lambda: self._built(rank, generation, whole=False))
        if len(group.arrived) == len(group.members):
            for name in group.members:
                self.at(self.short() + 0.001, lambda name=name: self._built(self.ranks[name], generation, whole=True))  # type: ignore[misc]

    def _built(self, rank: Rank, generation: Generation, *, whole: bool) -> None:
        group = self.groups[generation]
        if rank.name in group.built or not rank.alive:
            return
        if rank.frozen:
            self.at(0.1, lambda: self._built(rank, generation, whole=whole))
            return
        group.built[rank.name] = whole and (not group.left or self.chance(0.5))
        if group.built[rank.name]:
            self.strike("built", rank)
            rank.say(Joined(rank.name, generation, 0.0))
            if group.left:
                self._fail_soon(group, rank.name)
        else:
            rank.ledger.abandon(generation, CommunicatorError("not built"))

    def leave(self, name: str, generation: Generation) -> None:
        """A member's sockets are gone: collectives under way fail at the others, unless they were all but done."""
        group = self.groups.get(generation)
        if group is None or name not in group.members or name in group.left:
            return
        group.left.append(name)
        group.built.setdefault(name, False)
        for collective in group.collectives:
            if name in collective.entered:
                collective.outcome.setdefault(name, False)
        for other in group.members:
            if other != name:
                self._fail_soon(group, other)

    def _fail_soon(self, group: Group, name: str) -> None:
        self.at(self.short() * 2, lambda: self._fail(group, name))

    def _fail(self, group: Group, name: str) -> None:
        for collective in group.collectives:
            if name in collective.entered and name not in collective.outcome:
                collective.outcome[name] = False

    def enter(self, rank: Rank, group: Group, what: str, contribution: object) -> Collective:
        place = group.calls[rank.name]
        group.calls[rank.name] += 1
        if place == len(group.collectives):
            group.collectives.append(Collective())
        collective = group.collectives[place]
        collective.entered[rank.name] = (what, contribution)
        if group.left:
            # With somebody gone the others can at most be late to notice.
            self._fail_soon(group, rank.name)
        if len(collective.entered) == len(group.members):
            if len({entered[0] for entered in collective.entered.values()}) != 1:
                raise Violation(f"a sum meets a vote: {collective.entered}")
            stuck = any(self.ranks[name].frozen for name in group.members) and self.chance(0.5)
            if not stuck and (not group.left or rank.name not in group.left):
                for name in group.members:
                    self.at(self.short(), lambda name=name: collective.outcome.setdefault(name, True))  # type: ignore[misc]
        self.at(TIMEOUTS.collective, lambda: self._fail(group, rank.name))
        self.strike(what, rank)
        return collective

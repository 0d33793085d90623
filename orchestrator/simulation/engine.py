"""A run in virtual time around the real machine and the real policies.

Ranks, group and cluster are simulated. What happens to the world is decided by ``machine.advance``, as in a real run,
from the messages that real ranks would send. Time jumps from event to event: undisturbed training costs nothing.
"""

import random
from collections import Counter, deque
from collections.abc import Iterable, Iterator

from ...actors.messages import Finished, Heartbeat, Joined, Open, Prepare, Release, Resumed
from ...conf.simulation import Simulation
from ...policies.recovery import RecoveryPolicy
from ...policies.workload import WorkloadPolicy
from ...policies.world import Generation, Position, Work, WorkKind
from ..machine import events
from ..machine.state import State
from ..machine.transition import advance
from ..view import Phase
from .failures import Failure, What, failures
from .fleet import Fleet
from .outcome import Outcome
from .sayings import arrivals, first_words, reports
from .settings import Remembering, recovery_of, saves_of, settings_of, workload_of
from .timeline import Timeline
from .training import Training

# A deadline has passed only after it.
_JUST_AFTER = 1e-6


class Engine:
    """One simulated run.

    Args:
        simulation: what is simulated.
        workload: policy in place of the one that is named there.
        recovery: likewise.
    """

    def __init__(
        self, simulation: Simulation, workload: WorkloadPolicy | None = None, recovery: RecoveryPolicy | None = None
    ) -> None:
        self.simulation = simulation
        fleet, costs = simulation.fleet, simulation.costs
        self.costs = costs
        self.time = Timeline()
        self.heard = 0
        policy = workload or workload_of(simulation)
        self.recovery = Remembering(recovery or recovery_of(simulation))
        self.state = State(settings_of(simulation, policy, self.recovery))
        self.fleet = Fleet(simulation.nodes, fleet.ranks_per_node, fleet.nodes_per_rack)
        self.training = Training(costs, simulation.batch, saves_of(simulation), policy, fleet.replicas)
        self.failures: Counter[str] = Counter()
        self.remedies: Counter[str] = Counter()
        self.fewest = fleet.replicas
        self._over = False
        self._inbox: deque[events.Event] = deque()
        self._failures: Iterator[Failure] = failures(simulation)
        self._chance = random.Random(f"{simulation.seed} on steps")
        self._places = [
            simulation.failures.on_steps.first + place * simulation.failures.on_steps.every
            for place in range(simulation.failures.on_steps.count)
        ]
        self._unplaced: dict[str, frozenset[str]] = {}
        self._slow: dict[str, float] = {}
        self._resumes = False
        # The step at which ranks were last seen.
        self._shown = -1
        self._waiting_since: float | None = None

    def run(self) -> Outcome:
        """To its end."""
        self._tell(events.Started())
        self._tell(events.StoreOpened("simulated", 1))
        self._await_failure()
        while not self._over and (happen := self.time.next(self.simulation.seconds)) is not None:
            happen()
        self._clock_waiting(waits=False)
        self.training.end(self.now)
        return Outcome.of(self)

    @property
    def now(self) -> float:
        """Virtual seconds."""
        return self.time.now

    # --- time

    def _plan(self) -> None:
        """What comes next if nothing else happens."""
        self.time.replan()
        if self._over:
            return
        training, steps = self.training, self.simulation.steps
        if training.world is not None:
            self.time.plan(training.commits(), self._commit)
            if steps is not None:
                self.time.plan(training.finishes(steps), self._finish)
            if self._places and training.steady:
                self.time.plan(training.comes_to(self._places[0], self.now), self._lose_one)
        self.time.plan(self._spent(), self._stop)
        recovery = self.state.recovery
        if recovery is not None and recovery.waiting:
            self.time.plan(recovery.deadline + _JUST_AFTER, self._tick)
        if self.state.ask_after > self.now:
            self.time.plan(self.state.ask_after + _JUST_AFTER, self._tick)
        if recovery is None and self._changes_wanted:
            self.time.plan(training.takes_up(self.now, self._shown), self._show)
        back = self.fleet.next_repair() if self._unplaced or recovery is not None else None
        self.time.plan(back, self._repaired)

    def _spent(self) -> float | None:
        """When the GPU-hours that there are will have been spent if nobody comes or goes."""
        hours, alive = self.simulation.gpu_hours, self.fleet.alive * self.simulation.fleet.gpus_per_rank
        if hours is None or not alive:
            return None
        used = self.fleet.count(self.now) * self.simulation.fleet.gpus_per_rank
        return self.now + (3600.0 * hours - used) / alive

    def _stop(self) -> None:
        self._over = True

    @property
    def _changes_wanted(self) -> bool:
        """Whether ranks are to join or to leave as soon as somebody shows where training is."""
        world = self.training.world
        if world is None:
            return False
        joins = len(self.state.parked) >= world.ranks_per_replica and len(world.replicas) < self.state.target
        return bool(self.state.leaving) or joins

    # --- the machine

    def _tell(self, event: events.Event) -> None:
        self._inbox.append(event)
        self._converse()

    def _converse(self) -> None:
        """Say what there is to say to the machine, and carry out what it asks for, until nobody says anything more."""
        while self._inbox:
            event = self._inbox.popleft()
            self.heard += len(event.heard) if isinstance(event, events.Reports) else 1
            self.state, actions = advance(self.state, event, self.now)
            if actions:
                self._carry_out(actions)
        self._clock_waiting(waits=self.state.phase is Phase.WAITING)
        self._plan()

    def _carry_out(self, actions: Iterable[events.Action]) -> None:
        reporting: list[str] = []
        room = self.fleet.alive
        for action in actions:
            match action:
                case events.Send(name, Prepare()):
                    reporting.append(name)
                case events.Send(_, Open() as message):
                    if self.training.world is None or message.world.generation > self.training.world.generation:
                        self._open(message)
                case events.Send(name, Release()) | events.KillRank(name):
                    self._end(name)
                case events.StartRank():
                    self._start(action.incarnation, action.avoid)
                case events.EndRun():
                    self._over = True
        if self.fleet.alive > room and self.training.world is not None:
            self._inbox.append(self._room)
        if reporting:
            self._report(reporting)

    def _report(self, members: Iterable[str]) -> None:
        """Every member promises, and says what its replica has."""
        world, recovery = self.training.world, self.state.recovery
        assert world is not None
        assert recovery is not None
        self.training.interrupt(self.now)
        at = self.training.standing(self.now)
        living = (name for name in members if name in self.fleet.slots)
        said = reports(living, world, recovery.generation, at, self._work, self.now)
        self._inbox.append(events.Reports(tuple(events.Heard(report.incarnation, report) for report in said)))

    def _open(self, message: Open) -> None:
        """The members build their group, newcomers get their state, and the step goes on."""
        self.fewest = min(self.fewest, len(message.world.replicas))
        if self.training.world is None:
            self.training.begin(message, self.now)
            return
        recovery = self.state.recovery
        self._shown = min(self._shown, message.position.step)
        if recovery is not None and not recovery.planned:
            self.remedies[self.recovery.last] += 1
        living = self.fleet.slots
        whole = all(member.incarnation in living for member in message.world.members)
        ready = arrivals(message, self.costs, self.now, self.training.world)
        built = self.now + self.costs.rebuild
        self.training.open(message, self.now, ready, built, whole=whole)
        self._resumes = True
        self._pace()
        generation = message.world.generation
        self.time.at(built, lambda: self._built(generation))

    def _built(self, generation: Generation) -> None:
        world = self.training.world
        assert world is not None
        if world.generation == generation:
            seconds = self.costs.rebuild
            self._say(Joined(name, generation, seconds) for name in world.incarnations)

    def _commit(self) -> None:
        """The interrupted step is decided; that is the first decision in a new generation."""
        assert self.training.world is not None
        generation = self.training.world.generation
        place = Position(self.training.standing(self.now).step)
        self.training.commit(self.now)
        if self._resumes:
            self._resumes = False
            reduced = self.now - self.costs.step
            self._say(
                Resumed(name, generation, place, (), 0.0, reduced, self.now)
                for name in self.training.world.incarnations
            )
        self._plan()

    def _finish(self) -> None:
        """All steps are applied."""
        assert self.training.world is not None
        steps = self.simulation.steps or 0
        self.training.interrupt(self.now)
        world = self.training.world
        self._say(Finished(name, world.generation, "", 0.0, steps, 0) for name in world.incarnations)

    def _say(self, messages: Iterable[Joined | Resumed | Finished]) -> None:
        """The living members say this, one after the other."""
        living = self.fleet.slots
        for message in messages:
            if message.incarnation in living:
                self._inbox.append(events.Heard(message.incarnation, message))
        self._converse()

    def _inform(self) -> None:
        """Before the machine decides, it hears what it would have heard in the meantime."""
        self._inbox.extend(events.Saved(source, step) for source, step in self.training.saved.items())
        self._inbox.append(self._room)
        if self.state.settings.workload.by_speed:
            self._inbox.extend(events.Heard(beat.incarnation, beat) for beat in self._beats())

    def _beats(self) -> Iterator[Heartbeat]:
        """Every living member says how fast it is of late."""
        world, at = self.training.world, Position(self.training.standing(self.now).step)
        for member in world.members if world is not None else ():
            if member.incarnation in self.fleet.slots:
                busy = self.training.seconds(member.seat.replica)
                yield Heartbeat(member.incarnation, at, "training", computed=1, busy=busy)

    @property
    def _room(self) -> events.Room:
        return events.Room(self.fleet.free(self.now) // self.simulation.fleet.ranks_per_replica)

    def _show(self) -> None:
        """Heartbeats tell that training has come to a step."""
        world = self.training.world
        assert world is not None
        at = self.training.standing(self.now)
        self._shown = at.step
        shown = [name for name in world.incarnations if name in self.fleet.slots]
        for name in shown if self.state.leaving else shown[:1]:
            beat = Heartbeat(name, Position(at.step), "training", work=self._work if at.begun else None)
            self._inbox.append(events.Heard(name, beat))
        self._converse()

    def _tick(self) -> None:
        self._tell(events.Tick())

    def _clock_waiting(self, *, waits: bool) -> None:
        if self._waiting_since is not None:
            self.training.wait(self.now - self._waiting_since)
        self._waiting_since = self.now if waits else None

    @property
    def _work(self) -> Work:
        return Work(WorkKind.TRAINING, self.simulation.batch.microbatches)

    # --- ranks

    def _start(self, name: str, avoid: frozenset[str]) -> None:
        slot = self.fleet.place(name, self.now, avoid)
        if slot is None:
            self._unplaced[name] = avoid
            return
        # The clock runs from the first generation on.
        took = 0.0 if self.training.world is None else self.costs.restart
        self.time.at(self.now + took, lambda: self._ready(name, slot))
        if self.training.world is None:
            for event in first_words(name, self.fleet.node_of(slot), self.simulation):
                self._inbox.append(event)

    def _ready(self, name: str, slot: int) -> None:
        if self.fleet.slots.get(name) == slot and self.state.ranks[name].ready is None:
            self._inbox.extend(first_words(name, self.fleet.node_of(slot), self.simulation))
            self._converse()

    def _repaired(self) -> None:
        """Slots have come back."""
        unplaced, self._unplaced = self._unplaced, {}
        for name, avoid in unplaced.items():
            self._start(name, avoid)
        self._inform()
        self._tell(events.Tick())

    def _end(self, name: str) -> None:
        """A rank is ended on purpose."""
        self._unplaced.pop(name, None)
        if name in self.fleet.slots and not self.state.phase.ended:
            self.fleet.release(name, self.now)
            self._slow.pop(name, None)
            if self.training.world is not None and self.training.world.member(name) is not None:
                self.training.interrupt(self.now, lost=True)
            self._inbox.append(events.Ended(name, "it was ended"))

    # --- failures

    def _await_failure(self) -> None:
        failure = next(self._failures, None)
        if failure is not None:
            self.time.at(failure.at, lambda: self._fail(failure))

    def _fail(self, failure: Failure) -> None:
        self._await_failure()
        self._hit(failure)

    def _lose_one(self) -> None:
        """Training has come to a step at which somebody dies."""
        self._places.pop(0)
        world = self.training.world
        assert world is not None
        victim = self._chance.choice([name for name in world.incarnations if name in self.fleet.slots])
        repair = self.simulation.fleet.repair
        self._hit(Failure(self.now, What.RANK, self.fleet.slots[victim], repair, source="on steps"))

    def _hit(self, failure: Failure) -> None:
        if failure.what is What.SLOW:
            self._slow_down(failure)
            return
        nodes = {self.fleet.node_of(slot) for slot in self.fleet.hit_by(failure)}
        ended = self.fleet.hit(failure)
        if not ended:
            return
        self.failures[failure.source] += 1
        world = self.training.world
        if world is not None and any(world.member(name) is not None for name in ended):
            self.training.interrupt(self.now, lost=True)
        for name in ended:
            self._slow.pop(name, None)
        # One that is repaired comes back under its name, as lost nodes never do.
        lost_nodes = () if failure.what is What.RANK or failure.repair is not None else sorted(nodes)
        self.time.at(self.now + self.costs.detect, lambda: self._notice(ended, lost_nodes, failure.source))
        self._plan()

    def _notice(self, ended: Iterable[str], nodes: Iterable[str], cause: str) -> None:
        self._inform()
        for node in nodes:
            self._inbox.append(events.NodeLost(node, cause))
        for name in ended:
            self._inbox.append(events.Ended(name, cause))
        self._converse()

    def _slow_down(self, failure: Failure) -> None:
        name = self.fleet.name_of(failure.target)
        if name is not None:
            self.failures[failure.source] += 1
            self._slow[name] = failure.factor
            self.time.at(self.now + failure.seconds, lambda: self._speed_up(name))
            self._pace()
            self._plan()

    def _speed_up(self, name: str) -> None:
        if self._slow.pop(name, None) is not None:
            self._pace()
            self._plan()

    def _pace(self) -> None:
        """A replica is as slow as the slowest of its ranks."""
        world = self.training.world
        assert world is not None
        factors: dict[int, float] = {}
        for name, factor in self._slow.items():
            member = world.member(name)
            if member is not None:
                factors[member.seat.replica] = max(factor, factors.get(member.seat.replica, 1.0))
        self.training.pace(factors, self.now)

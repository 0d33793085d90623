"""Training as a fluid: all members step in lockstep, and nothing is computed one by one while nothing happens.

Steps follow each other undisturbed (``Steady``) until something happens. Then the step in progress is told replica by
replica (``Share``), for as long as it lasts, and after its commit steps are undisturbed again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...actors.messages import Open
from ...conf.simulation import Batch, SimulatedCosts
from ...policies.workload import Assignment, WorkloadPolicy
from ...policies.world import World
from .account import Account, Cause, Saves, Stretch, stalls
from .shares import Share, Steady, shares_of


@dataclass(frozen=True)
class Standing:
    """Where training is.

    Attributes:
        step: the first undecided one.
        begun: whether it was taken up.
        shares: by replica, of that step; empty if it was not.
    """

    step: int
    begun: bool
    shares: Mapping[int, Share] = field(default_factory=dict)


@dataclass
class _Interrupted:
    """The step in progress, told replica by replica.

    Attributes:
        begins: when the step is taken up, if that is still to come.
        built: when the group is there that reduces.
        whole: whether all members of the group live.
        dropped: microbatches that nobody contributes.
        usual: seconds of an undisturbed step when it was taken up, at nominal speed and at the real one.
        saving: seconds of saves since the commit before.
    """

    step: int
    begins: float
    shares: dict[int, Share]
    built: float
    whole: bool
    dropped: int
    usual: tuple[float, float]
    saving: float


class Training:
    """The members' steps.

    Args:
        costs: what really happens.
        batch: one step.
        saves: that are taken.
        policy: gives microbatches to replicas.
        replicas: at the start; their step is the ideal one.
    """

    def __init__(
        self, costs: SimulatedCosts, batch: Batch, saves: Sequence[Saves], policy: WorkloadPolicy, replicas: int
    ) -> None:
        self.account = Account()
        self.saved: dict[str, int] = {}
        self._costs = costs
        self._batch = batch
        self._saves = saves
        self._policy = policy
        self.ideal = -(-batch.microbatches // replicas) * costs.microbatch + costs.step
        self._slow: dict[int, float] = {}
        self._plan: Assignment | None = None
        self._planned: tuple[int, ...] = ()
        self._steady: Steady | None = None
        self._interrupted: _Interrupted | None = None
        self.world: World | None = None
        # When the last step was committed, or everybody went back to a saved state.
        self._since = 0.0
        self._waited = 0.0
        self._lost_at: float | None = None

    # --- looking

    def standing(self, now: float) -> Standing:
        """Where training is now."""
        held = self._interrupted
        if held is not None:
            begun = bool(held.shares) and held.begins <= now
            return Standing(held.step, begun, held.shares if begun else {})
        steady = self._undisturbed
        step = steady.step_at(now)
        return self._within(steady, step, now)

    def commits(self) -> float | None:
        """When the interrupted step will be committed; None if there is none, or if a member of the group is gone."""
        held = self._interrupted
        if held is None or not held.whole or not held.shares:
            return None
        return max(held.built, *(share.ends for share in held.shares.values())) + self._costs.step

    def comes_to(self, place: float, now: float) -> float | None:
        """When training comes to this place (2.5 is the middle of step 2) if nothing happens; None in other steps."""
        step = int(place)
        if self._steady is None:
            return None
        return max(now, self._steady.begins(step) + (place - step) * self._steady.seconds)

    @property
    def steady(self) -> bool:
        """Whether steps follow each other undisturbed."""
        return self._steady is not None

    def finishes(self, steps: int) -> float | None:
        """When so many steps are committed if nothing happens; None while a step is interrupted."""
        if self._steady is None:
            return None
        return self._steady.commits(steps - 1) if steps > self._steady.first else self._since

    def takes_up(self, now: float, beyond: int = -1) -> float | None:
        """When a step after ``beyond`` is taken up, or now if one is under way; None if that is not foreseen."""
        held = self._interrupted
        if held is not None:
            return max(now, held.begins) if held.step > beyond else None
        steady = self._undisturbed
        step = max(steady.step_at(now), beyond + 1)
        if now >= steady.commits(step):
            step += 1
        return max(now, steady.begins(step))

    # --- changing

    def interrupt(self, now: float, *, lost: bool = False) -> None:
        """Tell the step in progress replica by replica from here on; if a member is lost it cannot be committed."""
        self._remember_saves(now)
        if lost and self._lost_at is None:
            self._lost_at = now
        steady = self._steady
        if steady is not None:
            at = self.standing(now)
            first = steady.first
            lead = {Cause.SAVING: steady.begun - self._since}
            self.account.add(
                Stretch(first, at.step - first, self._summed, self._each(steady.seconds), lead, self._saves)
            )
            if at.step > first:
                self._since = steady.commits(at.step - 1)
            begins = steady.begins(at.step)
            usual = self._usual()
            self._interrupted = _Interrupted(
                at.step,
                begins,
                dict(at.shares) if at.begun else self._fresh({}, begins),
                built=0.0,
                whole=True,
                dropped=len(self._assignment.dropped),
                usual=usual,
                saving=begins - self._since,
            )
            self._steady = None
        assert self._interrupted is not None
        if lost:
            self._interrupted.whole = False

    def open(self, message: Open, now: float, ready: Mapping[int, float], built: float, *, whole: bool) -> None:
        """A new generation begins.

        Args:
            message: that opens it.
            now: when it is sent.
            ready: by replica, when it can begin; for those that take up the step with nothing done.
            built: when the group is there.
            whole: whether all of its members live.
        """
        leaving = {member.seat.replica for member in message.world.members if member.incarnation in message.leaving}
        self.world = message.world
        self._planned = tuple(replica for replica in message.world.replicas if replica not in leaving)
        self._policy = self._policy.given(message.speeds)
        self._plan = None
        step = message.position.step
        if message.restore is not None:
            self._go_back(step, now)
        before = self._interrupted
        self._lost_at = None
        if before is None or before.step != step:
            self._interrupted = _Interrupted(
                step, now, self._fresh(ready, now), built, whole, len(self._assignment.dropped), self._usual(), 0.0
            )
            return
        before.built, before.whole = built, whole
        if message.work is None:
            before.shares = self._fresh(ready, max(now, before.begins))
            before.dropped = len(self._assignment.dropped)
            return
        before.shares = self._shared(message, before.shares, now, ready)
        before.dropped = len(message.dropped)

    def commit(self, now: float) -> int:
        """The interrupted step is committed; undisturbed ones follow. Returns the steps that are committed."""
        held = self._interrupted
        assert held is not None
        spent = now - self._since
        summed = self._batch.microbatches - held.dropped
        nominal, real = held.usual
        left = spent - held.saving - self._waited
        each = {Cause.SAVING: held.saving, Cause.WAITING: self._waited}
        training = self.ideal * summed / self._batch.microbatches
        each[Cause.TRAINING] = training
        left -= training
        for cause, seconds in ((Cause.SMALLER, nominal - training), (Cause.SLOW, real - nominal)):
            each[cause] = max(0.0, min(seconds, left))
            left -= each[cause]
        each[Cause.RECOVERY] = left
        self.account.add(Stretch(held.step, 1, summed, each, {}))
        self._interrupted = None
        self._since, self._waited, self._lost_at = now, 0.0, None
        done = held.step + 1
        begun = now + stalls(self._saves, held.step, done)
        self._steady = Steady(done, begun, self._usual()[1], self._saves)
        return done

    def begin(self, message: Open, now: float) -> None:
        """The first generation."""
        self.world = message.world
        self._planned = message.world.replicas
        self._since = now
        self._steady = Steady(0, now, self._usual()[1], self._saves)

    def seconds(self, replica: int) -> float:
        """Of one microbatch."""
        return self._costs.microbatch * self._slow.get(replica, 1.0)

    def pace(self, factors: Mapping[int, float], now: float) -> None:
        """One microbatch of these replicas takes longer by these factors from now on, and no longer of the others."""
        if factors == self._slow:
            return
        self.interrupt(now)
        held = self._interrupted
        assert held is not None
        before, self._slow = self._slow, dict(factors)
        for replica in before.keys() | factors.keys():
            if replica in held.shares:
                held.shares[replica] = held.shares[replica].paced(self.seconds(replica), now)
        nominal, real = self._usual()
        held.usual = nominal, max(real, held.usual[1])

    def wait(self, seconds: float) -> None:
        """So long nobody trained, for want of capacity."""
        self._waited += seconds

    def end(self, now: float) -> None:
        """The run is over: what is under way is left."""
        self.interrupt(now)
        self.account.spend(Cause.UNFINISHED, now - self._since - self._waited)
        self.account.spend(Cause.WAITING, self._waited)

    # --- inside

    @property
    def _undisturbed(self) -> Steady:
        assert self._steady is not None, "training has not begun"
        return self._steady

    @property
    def _assignment(self) -> Assignment:
        """Of a step that nobody has begun."""
        if self._plan is None:
            self._plan = self._policy.plan(self._planned, self._batch.microbatches)
        return self._plan

    @property
    def _summed(self) -> int:
        return self._batch.microbatches - len(self._assignment.dropped)

    def _within(self, steady: Steady, step: int, now: float) -> Standing:
        if now < steady.begun:
            return Standing(steady.first, begun=False)
        if now >= steady.commits(step):
            return Standing(step + 1, begun=False)
        begins = steady.begins(step)
        return Standing(step, begun=True, shares=self._fresh({}, begins))

    def _usual(self) -> tuple[float, float]:
        """Seconds of an undisturbed step, at nominal speed and at the real one."""
        counts = {replica: len(self._assignment.computed_by(replica)) for replica in self._planned}
        nominal = max(counts.values()) * self._costs.microbatch
        real = max(count * self.seconds(replica) for replica, count in counts.items())
        return nominal + self._costs.step, real + self._costs.step

    def _each(self, seconds: float) -> dict[Cause, float]:
        """Where one undisturbed step's time goes."""
        training = self.ideal * self._summed / self._batch.microbatches
        nominal, real = self._usual()
        return {Cause.TRAINING: training, Cause.SMALLER: nominal - training, Cause.SLOW: real - nominal}

    def _fresh(self, ready: Mapping[int, float], begins: float) -> dict[int, Share]:
        begun = {replica: max(begins, ready.get(replica, begins)) for replica in self._planned}
        return shares_of(self._assignment, begun, {replica: self.seconds(replica) for replica in self._planned})

    def _shared(
        self, message: Open, before: Mapping[int, Share], now: float, ready: Mapping[int, float]
    ) -> dict[int, Share]:
        replica_of = {member.incarnation: member.seat.replica for member in message.world.members}
        nothing: frozenset[int] = frozenset()
        shares: dict[int, Share] = {}
        for member in message.world.members:
            if member.seat.coordinate:
                continue
            replica = member.seat.replica
            indices = message.indices.get(member.incarnation, ())
            original = message.shadows.get(member.incarnation)
            repeats = None if original is None else replica_of[original]
            if member.incarnation in message.sources or replica not in before:
                start = ready.get(replica, now)
                shares[replica] = Share(nothing, tuple(sorted(indices)), start, self.seconds(replica), repeats)
            else:
                shares[replica] = before[replica].given(indices, now, repeats)
        return shares

    def _go_back(self, step: int, now: float) -> None:
        lost_at = now if self._lost_at is None else self._lost_at
        self.account.spend(Cause.REDONE, lost_at - self._since)
        self.account.spend(Cause.RECOVERY, now - lost_at - self._waited)
        self.account.spend(Cause.WAITING, self._waited)
        self.account.roll_back(step)
        self._since, self._waited = now, 0.0
        self._interrupted = None

    def _remember_saves(self, now: float) -> None:
        """A save is whole when the step after it begins."""
        steady = self._steady
        if steady is None or now < steady.begun:
            return
        step = steady.step_at(now)
        for one in self._saves:
            newest = step // one.every * one.every
            if newest >= steady.first:
                self.saved[one.source] = newest

"""How the world goes on: what the reports say, what the recovery policy makes of it, and who is in the next world."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ...actors.messages import Report, Restore
from ...actors.saved.sources import START
from ...policies.recovery import RecoveryDecision
from ...policies.remedies import LossFacts, Remedy
from ...policies.world import Position, Work, WorkKind, World
from .measured import costs
from .reporting import Alike
from .roster import Left, Parked, Roster, anew, completed, joined, left_of, restored, survivors
from .state import Standing, State
from .trust import pending, source_of

# A rank that takes so many times longer to start than others did is not waited for.
_LATE = 2.0
_SOURCES = {Remedy.RESTORE_VAULT: "vault", Remedy.RESTORE_STORAGE: "storage"}


@dataclass(frozen=True)
class Scene:
    """What the reports of all living members say.

    Attributes:
        reports: themselves, by incarnation.
        groups: who stands where.
        position: first undecided position.
        work: what is under way there, None if nobody has come to it.
        released: members that were to leave and have nothing left to do.
        left: of the old world, these aside; whoever still lacks the state that it was to take is no help there.
        spares: those, and the parked ranks.
    """

    reports: Mapping[str, Report]
    groups: Sequence[Alike]
    position: Position
    work: Work | None
    released: tuple[str, ...]
    left: Left
    spares: tuple[Parked, ...]

    @property
    def lost(self) -> int:
        """Replicas that are not whole any more."""
        return len(self.left.broken) + len(self.left.gone)

    @property
    def admits(self) -> bool:
        """Whether somebody can come in who has not gone through what was before: at a training step, and only there."""
        return self.work is not None and self.work.kind is WorkKind.TRAINING


@dataclass(frozen=True)
class Answer:
    """What comes next; neither a roster nor a wait is the end.

    Attributes:
        reason: one line.
        roster: the next world.
        position: where it begins.
        anew: whether everybody begins the step of this position anew, whatever was under way in it.
        restore: set if everybody goes back.
        fresh: replicas that must be started before anybody trains.
        deadline: seconds that these may take from now on.
    """

    reason: str
    roster: Roster | None = None
    position: Position = Position(0)
    anew: bool = False
    restore: Restore | None = None
    fresh: int = 0
    deadline: float = 0.0


def scene(state: State, old: World, reports: Mapping[str, Report], groups: Sequence[Alike]) -> Scene:
    """Read the reports; every living member of the old world has made one."""
    # Where everybody goes back, nobody needs what another one holds.
    lacking = {name for said in groups if said.lacks and not pending(state) for name in said.names}
    # Whoever lacks the state may not even have heard that others have gone back.
    position = max((said.position for said in groups if not said.lacks), default=None)
    if position is None:
        # Nobody is left who could say it: this is what was heard last.
        position = max(state.ranks[name].position for name in old.names)
    there = (said.work for said in groups if said.position == position and said.work is not None)
    released = _released(state, old, reports, position)
    if released:
        # They did not die: it is as if they had never been there.
        staying = tuple(member for member in old.members if member.incarnation not in released)
        old = World(old.generation, staying, old.ranks_per_replica)
    # Whoever is under suspicion may be lost as well.
    ready = (name for name in sorted(state.parked) if state.ranks[name].standing is not Standing.SUSPECT)
    spares = [*sorted(lacking.difference(released)), *ready]
    return Scene(
        reports,
        groups,
        position,
        next(there, None),
        released,
        left_of(old, reports.keys() - lacking),
        tuple(Parked(name, state.ranks[name].node) for name in spares),
    )


def answer(state: State, found: Scene, now: float) -> Answer:
    """Choose. Pure: the policy is asked, and what it says is made a world, which may have to go back."""
    chosen = _chosen(state, found, now)
    if state.rollback is None or not pending(state) or chosen.roster is None:
        return chosen
    restore = source_of(state, state.rollback.to)
    where = "the start" if restore.source == START else f"step {restore.step}, from {restore.source}"
    reason = f"everybody goes back to {where}, since {state.rollback.reason}; {chosen.reason}"
    return Answer(reason, restored(chosen.roster), Position(restore.step), True, restore)


def _chosen(state: State, found: Scene, now: float) -> Answer:
    whole = len(found.left.whole)
    if found.lost == 0 and whole >= state.settings.minimum:
        return _going_on(state, found, "the same members form a new group")
    redo = pending(state)
    if (
        not redo
        and 0 < whole < state.settings.minimum
        and (steps := _steps(state)) is not None
        and found.position.step >= steps
    ):
        return _going_on(state, found, "all steps are applied: nobody else is needed")
    facts = loss_facts(state, found, now)
    decision = state.settings.recovery.given(costs(state)).decide(facts)
    return _carried_out(state, found, decision, now)


def loss_facts(state: State, found: Scene, now: float) -> LossFacts:
    """What the recovery policy is told."""
    recovery, settings, size = state.recovery, state.settings, state.settings.ranks_per_replica
    assert recovery is not None
    left = found.left
    starting = sum(state.ranks[name].standing is Standing.STARTING for name in state.coming)
    steps, step = _steps(state), found.position.step
    microbatches = found.work.microbatches if found.work else 1
    broken = [frozenset(range(size)) - {member.seat.coordinate for member in there} for there in left.broken.values()]
    saved = {source: min(held, step) for source, held in state.saved.items()}
    # Ranks that start make replicas together with those that are ready.
    coming = (len(found.spares) + starting) // size - len(found.spares) // size
    return LossFacts(
        members=max(len(left.whole) + found.lost, settings.minimum),
        survivors=len(left.whole),
        minimum=settings.minimum,
        ranks_per_replica=size,
        broken=tuple(broken),
        spares=len(found.spares),
        room=coming + state.room,
        replacement_rate=1 / settings.replacement if settings.replacement else 0.0,
        waited=now - recovery.waiting if recovery.waiting else 0.0,
        step=step,
        remaining_steps=None if steps is None else max(0, steps - step),
        microbatches=microbatches,
        lost_microbatches=_lost_microbatches(found, microbatches) if found.work else 0,
        state_bytes=_state_bytes(state),
        vault_step=saved.get("vault"),
        storage_step=saved.get("storage"),
    )


def _steps(state: State) -> int | None:
    """That the run is to take in all, if anybody has said so."""
    return next((rank.ready.steps for rank in state.ranks.values() if rank.ready), None)


def _going_on(state: State, found: Scene, reason: str) -> Answer:
    """Everybody who is there goes on, and whoever is to join comes in if that is possible now."""
    roster = survivors(found.left)
    size = state.settings.ranks_per_replica
    wanted = state.target - (len(found.left.whole) - leavers(state, found.left.whole))
    count = max(0, min(wanted, len(found.spares) // size)) if found.admits else 0
    if count:
        reason = f"replicas that join: {count}"
        roster = joined(roster, found.spares[: count * size], size)
    return Answer(reason, roster, found.position)


def leavers(state: State, replicas: Collection[int]) -> int:
    """How many of these replicas are to leave."""
    seats = (state.ranks[name].seat for name in state.leaving)
    return len({seat.replica for seat in seats if seat is not None} & set(replicas))


def _carried_out(state: State, found: Scene, decision: RecoveryDecision, now: float) -> Answer:
    option, remedy = decision.option, decision.remedy
    if option is None:
        return Answer(decision.reason)
    assert state.recovery is not None
    if remedy is Remedy.WAIT or option.fresh:
        started = state.recovery.waiting or now
        until = decision.deadline
        if until is None:
            until = started + state.settings.timeouts.start - now
        if until <= 0:
            return Answer(f"{option.fresh} replicas did not start in time to {remedy}")
        return Answer(decision.reason, fresh=option.fresh, deadline=until)
    left = found.left
    if option.completed:
        roster = completed(left, option.completed, found.spares, orphans=remedy is not Remedy.SWAP)
    else:
        roster = survivors(left)
    if remedy in _SOURCES:
        if not left.whole and (seconds := _worth_waiting(state, now)) > 0 and option.world < found.lost:
            return Answer(
                f"{decision.reason}; the others are starting", fresh=found.lost - option.world, deadline=seconds
            )
        step = state.saved[_SOURCES[remedy]]
        return Answer(decision.reason, restored(roster), Position(step), True, Restore(_SOURCES[remedy], step))
    if option.completed and not found.admits and not pending(state):
        if not left.whole:
            return Answer(decision.reason, anew(roster), Position(found.position.step), True)
        # They come in as soon as a training step has begun.
        return Answer(f"{decision.reason}; newcomers wait for the next training step", survivors(left), found.position)
    return Answer(decision.reason, roster, found.position)


def _worth_waiting(state: State, now: float) -> float:
    """Seconds for which ranks that start are still waited for when everybody was lost: they hold nobody up."""
    assert state.recovery is not None
    if not any(state.ranks[name].standing is Standing.STARTING for name in state.coming):
        return 0.0
    return (state.recovery.waiting or now) + _LATE * costs(state).restart - now


def _released(state: State, old: World, reports: Mapping[str, Report], position: Position) -> tuple[str, ...]:
    """Members that were told to leave and have no work left, a whole replica at once, if enough others stay."""
    if not state.leaving:
        return ()
    size = state.settings.ranks_per_replica
    idle: dict[int, list[str]] = {}
    for name, told in sorted(state.leaving.items()):
        held = reports.get(name)
        member = old.member(name)
        if told is None or held is None or member is None:
            continue
        if held.position < position or not (held.done or held.owed):
            idle.setdefault(member.seat.replica, []).append(name)
    free = [group for _, group in sorted(idle.items()) if len(group) == size]
    # Whoever lacks the state cannot take over from them.
    holders = {name for name, held in reports.items() if not held.lacks}
    staying = len(left_of(old, holders).whole) - len(free)
    return tuple(name for group in free for name in group) if staying >= max(1, state.settings.minimum) else ()


def _state_bytes(state: State) -> int:
    """Of one rank, at the coordinate where it is most; all replicas are alike."""
    assert state.world is not None
    replica = (state.ranks[member.incarnation] for member in state.world.members[: state.settings.ranks_per_replica])
    return max((rank.ready.state_bytes for rank in replica if rank.ready), default=0)


def _lost_microbatches(found: Scene, microbatches: int) -> int:
    """Those of the work under way that no whole replica holds or is about to compute; its ranks all say the same."""
    held = [found.reports[members[0].incarnation] for members in found.left.whole.values()]
    kept = frozenset[int]().union(*(one.done for one in held), *(one.owed for one in held))
    return max(0, microbatches - len(kept))

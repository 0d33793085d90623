"""What can be done about a loss: the facts of it, and every remedy that they allow. Pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate

from ..conf.bounds import refuse_below


class Remedy(StrEnum):
    """What is done about a loss. Between equals, the earlier one is taken."""

    SWAP = "swap"
    COMPLETE = "complete"
    SHRINK = "shrink"
    REFORM = "reform"
    WAIT = "wait"
    RESTORE_VAULT = "restore from vault"
    RESTORE_STORAGE = "restore from storage"
    END = "end"


@dataclass(frozen=True)
class LossFacts:
    """What is known when a loss must be answered.

    Attributes:
        members: replicas before the loss.
        survivors: replicas that are whole now.
        minimum: fewest replicas that may train.
        ranks_per_replica: R.
        broken: for each replica that lost some of its ranks but not all, the coordinates that it lost. Replicas that
            are neither whole nor broken are lost altogether.
        spares: parked ranks that are ready.
        room: replicas for which the cluster has room beside everything that lives.
        replacement_rate: further replicas for which room comes, per second; 0 if none is to be expected.
        waited: seconds since training began to wait for capacity.
        step: optimizer steps that are committed.
        remaining_steps: optimizer steps that are left; None if nobody knows.
        microbatches: B of the running step.
        lost_microbatches: of these, how many nobody holds any more.
        state_bytes: of one rank.
        vault_step: steps that the newest snapshot in vaults holds; None without one.
        storage_step: steps that the newest checkpoint on storage holds; None without one.

    Raises:
        ValueError: facts that contradict each other, in one line.
    """

    members: int
    survivors: int
    minimum: int
    ranks_per_replica: int = 1
    broken: tuple[frozenset[int], ...] = ()
    spares: int = 0
    room: int = 0
    replacement_rate: float = 0.0
    waited: float = 0.0
    step: int = 0
    remaining_steps: int | None = None
    microbatches: int = 1
    lost_microbatches: int = 0
    state_bytes: int = 0
    vault_step: int | None = None
    storage_step: int | None = None

    def __post_init__(self) -> None:
        at_least_one = ("members", "minimum", "ranks_per_replica", "microbatches")
        refuse_below(1, **{name: getattr(self, name) for name in at_least_one})
        others = (
            "survivors",
            "spares",
            "room",
            "replacement_rate",
            "waited",
            "step",
            "lost_microbatches",
            "state_bytes",
        )
        refuse_below(0, remaining_steps=self.remaining_steps or 0, **{name: getattr(self, name) for name in others})
        if self.survivors + len(self.broken) > self.members:
            raise ValueError(
                f"{self.survivors} whole and {len(self.broken)} broken replicas are more than the {self.members} before"
            )
        coordinates = set(range(self.ranks_per_replica))
        if not all(lost and lost < coordinates for lost in self.broken):
            shown = [sorted(lost) for lost in self.broken]
            raise ValueError(f"broken={shown} must be some, but not all, of {self.ranks_per_replica} coordinates each")
        if self.lost_microbatches > self.microbatches:
            raise ValueError(f"{self.lost_microbatches} of {self.microbatches} microbatches cannot be lost")
        for name in ("vault_step", "storage_step"):
            held = getattr(self, name)
            if held is not None and not 0 <= held <= self.step:
                raise ValueError(f"{name}={held} must be a step that was committed, of {self.step}")

    @property
    def lost(self) -> int:
        """Replicas that are not whole."""
        return self.members - self.survivors

    @property
    def gaps(self) -> tuple[frozenset[int], ...]:
        """The coordinates that each lost replica lacks, fewest first."""
        everything = frozenset(range(self.ranks_per_replica))
        ordered = sorted(self.broken, key=lambda gap: (len(gap), sorted(gap)))
        return (*ordered, *[everything] * (self.lost - len(self.broken)))

    @property
    def orphans(self) -> int:
        """Living ranks of broken replicas."""
        return sum(self.ranks_per_replica - len(gap) for gap in self.broken)

    @property
    def state_lives(self) -> bool:
        """Whether living ranks hold the whole state: at every coordinate at least one."""
        return self.survivors > 0 or (bool(self.broken) and not frozenset.intersection(*self.broken))

    @property
    def hands(self) -> int:
        """Replicas that living ranks, orphans and spares included, can make up at once."""
        return self.survivors + min(self.lost, (self.orphans + self.spares) // self.ranks_per_replica)


@dataclass(frozen=True)
class Option:
    """What a remedy comes to.

    Attributes:
        world: replicas that train first.
        completed: how many of them are made whole from spares and orphans.
        transfers: how many of those must be given state, at the coordinate where it is most.
        fresh: replicas that must be started before anybody trains.
        source: the remedy whose state is read; None if the state of living ranks is kept.
        back: steps that are lost by that and done again; None likewise.
    """

    world: int
    completed: int = 0
    transfers: int = 0
    fresh: int = 0
    source: Remedy | None = None
    back: int | None = None


def possible(facts: LossFacts, patience: float) -> dict[Remedy, Option]:
    """Every remedy that the facts allow, restores newest first; empty if the run must end.

    Args:
        facts: of the loss.
        patience: seconds that training may wait for capacity in all.
    """
    if facts.lost == 0 and facts.survivors >= facts.minimum:
        return {Remedy.REFORM: Option(facts.survivors)}
    live = {Remedy.SWAP: _swap(facts), Remedy.COMPLETE: _complete(facts), Remedy.SHRINK: Option(facts.survivors)}
    options = {
        remedy: option
        for remedy, option in live.items()
        if option is not None and option.world >= facts.minimum and facts.state_lives
    }
    options |= {source: option for source, back in sources(facts).items() if (option := _restore(facts, source, back))}
    if not options and facts.waited < patience and (option := _wait(facts)):
        options[Remedy.WAIT] = option
    return options


def describe(facts: LossFacts, remedy: Remedy, option: Option) -> str:
    """One line on what a remedy does."""
    if remedy is Remedy.REFORM:
        return "nobody is lost: the same members form a new group"
    if remedy is Remedy.WAIT:
        return f"{too_few(facts)}: waiting for {option.fresh} more"
    said = f"{option.world} of {facts.members} replicas go on"
    if remedy is Remedy.SWAP:
        return f"{said}, {option.completed} of them completed by spares"
    if remedy is Remedy.COMPLETE:
        return f"{said}, {option.completed} of them completed by orphans of other replicas"
    if option.back is not None:
        started = f", {option.fresh} of them started anew" if option.fresh else ""
        return f"{remedy}, {option.back} steps back: {said}{started}"
    return said


def sources(facts: LossFacts) -> dict[Remedy, int]:
    """Steps that are lost by what can be restored from, newest first, vaults before storage."""
    held = ((Remedy.RESTORE_VAULT, facts.vault_step), (Remedy.RESTORE_STORAGE, facts.storage_step))
    back = {remedy: facts.step - step for remedy, step in held if step is not None}
    return dict(sorted(back.items(), key=lambda pair: pair[1]))


def too_few(facts: LossFacts) -> str:
    """One line on what is left."""
    return f"{facts.hands} of {facts.members} replicas are left, the minimum is {facts.minimum}"


def _swap(facts: LossFacts) -> Option | None:
    """Spares complete whole replicas, those first that lack least; None if they are not enough for one."""
    needed = accumulate(map(len, facts.gaps))
    completed = sum(count <= facts.spares for count in needed)
    if not completed:
        return None
    return Option(facts.survivors + completed, completed, _most(_count(facts.gaps[:completed])))


def _complete(facts: LossFacts) -> Option | None:
    """Orphans, then spares, complete as many replicas as they can; None if no replica with orphans is left to give.

    Those replicas that lack least are kept; with R ranks each, k of them can be made whole exactly when orphans and
    spares together are at least kR.
    """
    kept = facts.hands - facts.survivors
    missing, given = _count(facts.gaps[:kept]), _count(facts.gaps[kept:])
    replicas = facts.lost - kept
    # An orphan that keeps its coordinate holds the state already.
    there = {place: replicas - given[place] for place in range(facts.ranks_per_replica)}
    if not kept or not any(there.values()):
        return None
    return Option(facts.survivors + kept, kept, _most(missing - Counter(there)))


def _count(gaps: Sequence[frozenset[int]]) -> Counter[int]:
    """How many of these replicas lack each coordinate."""
    return Counter(place for gap in gaps for place in gap)


def _most(counts: Counter[int]) -> int:
    return max(counts.values(), default=0)


def _restore(facts: LossFacts, source: Remedy, back: int) -> Option | None:
    """Everybody goes back to a snapshot or checkpoint; None if they are too few, or if living state would do."""
    completed = facts.hands - facts.survivors
    if facts.hands >= facts.minimum:
        return Option(facts.hands, completed, source=source, back=back)
    world = min(max(facts.members, facts.minimum), facts.hands + facts.room)
    if facts.state_lives or world < facts.minimum:
        return None
    return Option(world, completed, fresh=world - facts.hands, source=source, back=back)


def _wait(facts: LossFacts) -> Option | None:
    """Until there are as many as are needed; None if no state would be left to go on from."""
    completed = facts.hands - facts.survivors
    fresh = facts.minimum - facts.hands
    if facts.state_lives:
        return Option(facts.minimum, completed, completed + fresh, fresh)
    source, back = next(iter(sources(facts).items()), (None, None))
    return Option(facts.minimum, completed, 0, fresh, source, back) if source else None

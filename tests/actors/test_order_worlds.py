"""Every epoch holds every sample once, whatever happens to the world: the whole of it as pure computation."""

import random
from collections import Counter
from dataclasses import dataclass, field

from everstep.actors.rank.order import SampleOrder
from everstep.conf.schedule import BatchSchedule
from everstep.policies.workload import Balanced
from everstep.policies.world import Progress
from hypothesis import event, given, settings
from hypothesis import strategies as st


@dataclass
class Step:
    """One step of a world: who owes what, and which samples each replica has summed.

    Attributes:
        sums: samples in the accumulators of each replica, by microbatch.
    """

    owed: dict[int, list[int]]
    sums: dict[int, dict[int, tuple[int, ...]]] = field(default_factory=dict)

    def compute(self, replica: int, number: int, order: SampleOrder) -> None:
        index = self.owed[replica].pop(0)
        self.sums[replica][index] = order.samples(number, index)

    def lose(self, lost: set[int], microbatches: int) -> None:
        """The dead take their accumulators with them; survivors keep theirs."""
        survivors = set(self.owed) - lost
        held = {one: Progress(frozenset(self.sums[one]), frozenset(self.owed[one])) for one in survivors}
        whole = Balanced().extend(held, microbatches).indices
        self.sums = {one: self.sums[one] for one in survivors}
        self.owed = {one: [index for index in whole[one] if index not in self.sums[one]] for one in survivors}


def train(order: SampleOrder, table: dict[int, int], world: int, steps: int, chance: random.Random) -> list[int]:
    """All samples of all committed steps, in the order of their positions; the world changes at random."""
    replicas = list(range(world))
    newest = world
    committed: list[int] = []
    microbatches = table[0]
    for number in range(steps):
        microbatches = table.get(number, microbatches)
        if chance.random() < 0.3:
            joining = chance.randint(1, 3)
            replicas += range(newest, newest + joining)
            newest += joining
        plan = Balanced().plan(replicas, microbatches).indices
        step = Step({one: list(plan[one]) for one in replicas}, {one: {} for one in replicas})
        while any(step.owed.values()):
            step.compute(chance.choice([one for one, left in step.owed.items() if left]), number, order)
            if len(step.owed) > 1 and chance.random() < 0.15:
                # Also after the last microbatch, when all is done and nothing is reduced.
                lost = set(chance.sample(sorted(step.owed), chance.randint(1, len(step.owed) - 1)))
                event("a loss in the middle of a step")
                step.lose(lost, microbatches)
        reduced = {index: samples for sums in step.sums.values() for index, samples in sums.items()}
        assert sum(map(len, step.sums.values())) == len(reduced) == microbatches
        committed += [sample for index in sorted(reduced) for sample in reduced[index]]
        replicas = sorted(step.sums)
    return committed


tables = st.dictionaries(st.integers(1, 12), st.integers(1, 9), max_size=3).flatmap(
    lambda later: st.integers(1, 9).map(lambda first: {0: first, **later})
)


@settings(max_examples=150, deadline=None)
@given(
    length=st.integers(1, 40),
    size=st.integers(1, 6),
    table=tables,
    world=st.integers(1, 12),
    steps=st.integers(1, 16),
    seed=st.integers(0, 2**32),
    shuffle=st.booleans(),
)
def test_every_epoch_is_exact_through_losses_joins_and_changes_of_the_batch(
    length: int, size: int, table: dict[int, int], world: int, steps: int, seed: int, shuffle: bool
) -> None:
    """Epochs end anywhere: in the middle of a step, or of a microbatch. Worlds may be larger than B."""
    order = SampleOrder(length, size, BatchSchedule.of(table), seed, shuffle)
    disturbed = train(order, table, world, steps, random.Random(seed))
    alone = train(order, table, 1, steps, random.Random(seed + 1))
    assert disturbed == alone
    epochs, tail = divmod(len(disturbed), length)
    for epoch in range(epochs):
        assert Counter(disturbed[epoch * length : (epoch + 1) * length]) == dict.fromkeys(range(length), 1)
    assert len(set(disturbed[epochs * length :])) == tail
    event(f"ends in the middle of a microbatch: {tail % size != 0}")


def test_the_batch_grows_and_no_sample_is_passed_over() -> None:
    order = SampleOrder(100, 2, BatchSchedule.of({0: 1, 2: 3}), 0, shuffle=False)
    assert [order.samples(*place) for place in ((0, 0), (1, 0), (2, 0), (2, 1), (2, 2), (3, 0))] == [
        (0, 1),
        (2, 3),
        (4, 5),
        (6, 7),
        (8, 9),
        (10, 11),
    ]


def test_a_world_larger_than_the_batch_has_members_without_work() -> None:
    order = SampleOrder(7, 2, 3, 1, shuffle=True)
    plan = Balanced().plan(range(5), 3).indices
    assert [len(plan[replica]) for replica in range(5)] == [1, 1, 1, 0, 0]
    drawn = [order.samples(0, index) for replica in range(5) for index in plan[replica]]
    assert len({sample for samples in drawn for sample in samples}) == 6

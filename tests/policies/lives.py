"""Steps that lose replicas again and again, and what must be true of each of them under any exact policy."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from everstep.policies.workload import Assignment, WorkloadPolicy
from everstep.policies.world import Progress
from hypothesis import strategies as st

Held = dict[int, Progress]
Done = dict[int, frozenset[int]]

replica_ids = st.lists(st.integers(0, 40), min_size=1, max_size=8, unique=True)
batch_sizes = st.integers(0, 24)


def assert_whole(assignment: Assignment, replicas: Sequence[int], microbatches: int) -> None:
    """Every index of the step, each once, over exactly these replicas, ascending for each; shadows add nothing."""
    assert set(assignment.indices) == set(replicas)
    assert assignment.dropped == ()
    given_out = [index for indices in assignment.indices.values() for index in indices]
    assert sorted(given_out) == list(range(microbatches))
    assert all(list(indices) == sorted(indices) for indices in assignment.indices.values())
    for shadow, repeated in assignment.shadows.items():
        assert assignment.indices[shadow] == ()
        assert repeated in assignment.indices
        assert repeated not in assignment.shadows
        assert assignment.computed_by(shadow) == assignment.indices[repeated] != ()


def assert_plans(policy: WorkloadPolicy, replicas: Sequence[int], microbatches: int) -> Assignment:
    """What must be true of any plan; it is a function of the set of replicas."""
    assignment = policy.plan(replicas, microbatches)
    assert_whole(assignment, replicas, microbatches)
    assert policy.plan(replicas[::-1], microbatches) == policy.plan(sorted(replicas), microbatches) == assignment
    return assignment


def assert_extends(
    policy: WorkloadPolicy, held: Mapping[int, Progress], microbatches: int, speeds: Mapping[int, float] | None = None
) -> Assignment:
    """What must be true of any extension of ``held``."""
    assignment = policy.extend(held, microbatches)
    assert_whole(assignment, list(held), microbatches)
    assert policy.extend(dict(sorted(held.items(), reverse=True)), microbatches) == assignment
    fresh: dict[int, set[int]] = {}
    left: dict[int, int] = {}
    for replica, progress in held.items():
        mine = set(assignment.indices[replica])
        kept = progress.done | progress.owed
        if progress.repeats is None:
            assert kept <= mine, "what a replica holds or computes is taken from it"
        elif replica in assignment.shadows:
            assert kept <= set(assignment.computed_by(replica)), "a shadow has what it no longer repeats"
        else:
            assert kept <= mine or not kept & mine, "a shadow is promoted by halves"
        fresh[replica] = mine - kept
        left[replica] = len(mine - progress.done)
    somewhere = {index for progress in held.values() for index in progress.done | progress.owed}
    given_out = sorted(index for indices in fresh.values() for index in indices)
    assert given_out == sorted(set(range(microbatches)) - somewhere), "computed again, though somebody has it"
    for replica, given in fresh.items():
        if given:
            # It was the first to be done with the last of them: nobody idles while it has two more to compute.
            speed = (speeds or {}).get
            finish = left[replica] / speed(replica, 1.0)
            assert all(finish <= (left[other] + 1) / speed(other, 1.0) for other in held if other != replica)
    return assignment


def facts(assignment: Assignment, survivors: Sequence[int], done: Mapping[int, frozenset[int]]) -> Held:
    """What survivors report."""
    return {
        replica: Progress(
            done[replica],
            frozenset(assignment.computed_by(replica)) - done[replica],
            assignment.shadows.get(replica),
        )
        for replica in survivors
    }


def computed(assignment: Assignment, done: Mapping[int, frozenset[int]], counts: Mapping[int, int]) -> Done:
    """After each replica has computed that many more of what it owes, in order."""
    later = {}
    for replica, before in done.items():
        owed = [index for index in assignment.computed_by(replica) if index not in before]
        later[replica] = before | set(owed[: counts.get(replica, 0)])
    return later


def carried(assignment: Assignment, done: Mapping[int, frozenset[int]]) -> Done:
    """What survivors still hold under a new assignment: a shadow that let go begins with nothing."""
    held = {replica: done[replica] for replica in assignment.indices}
    return {
        replica: indices if indices <= set(assignment.computed_by(replica)) else frozenset()
        for replica, indices in held.items()
    }


def nothing(replicas: Sequence[int]) -> Done:
    return {replica: frozenset() for replica in replicas}


def assert_survives(data: st.DataObject, policy: WorkloadPolicy, speeds: Mapping[int, float] | None = None) -> None:
    """Several replicas die at once, others inside the extension, others in later steps, down to one."""
    replicas = data.draw(replica_ids, "replicas")
    microbatches = data.draw(batch_sizes, "microbatches")
    while True:
        assignment = assert_plans(policy, replicas, microbatches)
        if len(replicas) == 1:
            assert assignment.indices[replicas[0]] == tuple(range(microbatches))
            return
        done = nothing(replicas)
        for _ in range(data.draw(st.integers(1, 3), "losses in this step")):
            if len(replicas) == 1:
                break
            counts = data.draw(st.dictionaries(st.sampled_from(replicas), st.integers(0, 10)), "computed")
            done = computed(assignment, done, counts)
            fewer = st.lists(st.sampled_from(replicas), min_size=1, max_size=len(replicas) - 1, unique=True)
            replicas = data.draw(fewer, "survivors")
            assignment = assert_extends(policy, facts(assignment, replicas, done), microbatches, speeds)
            done = carried(assignment, done)


def groups(replicas: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Every set of survivors but all and none."""
    for size in range(1, len(replicas)):
        yield from combinations(replicas, size)


def assert_survives_everything(
    policy: WorkloadPolicy, world: int, microbatches: int, speeds: Mapping[int, float] | None = None
) -> None:
    """Every set of dead, again inside each extension, again in the next step, at many a progress."""
    replicas = range(world)
    plan = assert_plans(policy, replicas, microbatches)
    longest = max(map(len, plan.indices.values()))
    for finished in range(longest + 1):
        # In lockstep, and each one at another place.
        for spread in (0, 1):
            counts = {replica: (finished + spread * replica) % (longest + 1) for replica in replicas}
            done = computed(plan, nothing(replicas), counts)
            for survivors in groups(replicas):
                first = assert_extends(policy, facts(plan, survivors, done), microbatches, speeds)
                assert_plans(policy, survivors, microbatches)
                for more in (0, 1, microbatches):
                    then = computed(first, carried(first, done), dict.fromkeys(survivors, more))
                    for left in groups(survivors):
                        assert_extends(policy, facts(first, left, then), microbatches, speeds)

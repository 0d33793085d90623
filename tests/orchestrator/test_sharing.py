"""What the members of the next world are given of a step in progress, and how fast they are held to be."""

from collections.abc import Mapping

import pytest
from everstep.actors.messages import Open, Report, StoreAddress
from everstep.conf.elastic import Timeouts
from everstep.orchestrator.machine.settings import Settings
from everstep.orchestrator.machine.sharing import Shared, share
from everstep.orchestrator.machine.speeds import speeds
from everstep.orchestrator.machine.state import Rank, State
from everstep.policies.workload import AdaptiveWorld, Balanced, Versatile, Weighted, WorkloadPolicy
from everstep.policies.world import Generation, Member, Position, Seat, Work, WorkKind, World

B = 8
HERE, BEFORE = Position(3), Position(2)
TRAINING, EVALUATION = Work(WorkKind.TRAINING, B), Work(WorkKind.EVALUATION, B)


def world_of(number: int, replicas: tuple[int, ...], size: int = 1) -> World:
    members = (Member(f"{replica}.{place}", Seat(replica, place)) for replica in replicas for place in range(size))
    return World(Generation(1, number), tuple(members), size)


def state_of(policy: WorkloadPolicy, replicas: int, size: int = 1, **told: object) -> State:
    """After generation 1.1 was opened to so many replicas; ``told`` is what it said besides."""
    world = world_of(1, tuple(range(replicas)), size)
    opened = Open(world, Position(0), {}, StoreAddress("host", 1, "root"), **told)  # type: ignore[arg-type]
    return State(Settings("run", 1, (), 1, policy, Timeouts(), size), world=world, opened=opened)


def report(
    name: str,
    done: tuple[int, ...] = (),
    owed: tuple[int, ...] = (),
    repeats: int | None = None,
    position: Position = HERE,
    work: Work | None = TRAINING,
) -> Report:
    return Report(name, Generation(1, 1), position, frozenset(done), frozenset(owed), work=work, repeats=repeats)


def shared(state: State, world: World, *reports: Report, **more: object) -> Shared:
    return share(state, world, HERE, {held.incarnation: held for held in reports}, **more)  # type: ignore[arg-type]


def test_what_nobody_has_begun_is_planned_by_everybody_alone() -> None:
    state = state_of(Balanced(), 3)
    world = world_of(2, (0, 1))
    idle = [report(name, work=None) for name in ("0.0", "1.0")]
    assert shared(state, world, *idle) == Shared()
    elsewhere = report("0.0", (1,), position=BEFORE)
    assert shared(state, world, elsewhere, idle[1]) == Shared()


def test_what_is_lost_goes_to_who_is_done_first() -> None:
    given = shared(state_of(Balanced(), 4), world_of(2, (0, 1, 3)), report("0.0", (0, 1)), report("1.0", (2, 3)),
                   report("3.0", (6,), (7,)))  # fmt: skip
    assert given.indices == {"0.0": (0, 1, 4), "1.0": (2, 3, 5), "3.0": (6, 7)}
    assert (given.work, given.lost, given.shadows, given.dropped) == (TRAINING, (4, 5), {}, frozenset())


def test_what_a_survivor_would_have_begun_is_given_out_but_not_lost() -> None:
    given = shared(state_of(Balanced(), 4), world_of(2, (0, 1, 3)), report("0.0", (0, 1)), report("1.0", (2, 3)),
                   report("3.0", work=None))  # fmt: skip
    assert given.lost == (4, 5)
    assert sorted(index for held in given.indices.values() for index in held) == list(range(B))
    assert given.indices["3.0"] == (6,)


def test_a_promoted_shadow_loses_nothing_and_another_one_stays_a_shadow() -> None:
    state, world = state_of(Versatile(), 6), world_of(2, (1, 2, 3, 4, 5))
    given = shared(state, world, report("1.0", (2,), (3,)), report("2.0", (4,), (5,)), report("3.0", (6, 7)),
                   report("4.0", (0,), (1,), repeats=0), report("5.0", (2,), (3,), repeats=1))  # fmt: skip
    assert given.indices == {"1.0": (2, 3), "2.0": (4, 5), "3.0": (6, 7), "4.0": (0, 1), "5.0": (2, 3)}
    assert (given.shadows, given.lost) == ({"5.0": "1.0"}, ())


def test_ranks_repeat_those_at_their_own_coordinate() -> None:
    reports = [
        report(f"{replica}.{place}", done, repeats=repeats)
        for place in (0, 1)
        for replica, done, repeats in ((0, (0, 1), None), (1, (2, 3), None), (2, (4, 5), None), (4, (0, 1), 0))
    ]
    given = shared(state_of(Versatile(), 5, size=2), world_of(2, (0, 1, 2, 4), size=2), *reports)
    assert given.shadows == {"4.0": "0.0", "4.1": "0.1"}
    assert given.indices["4.1"] == given.indices["0.1"]


def test_a_replica_has_done_what_all_of_its_ranks_have() -> None:
    """One of them may be a microbatch further, and one may not have come to the position."""
    state, world = state_of(Weighted(), 2, size=2), world_of(2, (0,), size=2)
    ahead = report("0.0", (0, 1), (2, 3))
    given = shared(state, world, ahead, report("0.1", (0,), (1, 2, 3)))
    assert given.indices == {"0.0": tuple(range(B)), "0.1": tuple(range(B))}
    assert given.lost == (4, 5, 6, 7)
    for first, second in (("0.0", "0.1"), ("0.1", "0.0")):
        behind = report(second, position=BEFORE)
        assert shared(state, world, report(first, (0, 1), (2, 3)), behind).indices == given.indices


def test_who_begins_anew_holds_nothing() -> None:
    state, world = state_of(Balanced(), 2), world_of(2, (0, 1))
    given = shared(state, world, report("0.0", (0, 1), (2, 3)), report("1.0", (4, 5), (6, 7)), sources={"1.0": "1.0"})
    assert given.indices == {"0.0": (0, 1, 2, 3, 6), "1.0": (4, 5, 7)}
    assert given.lost == (4, 5, 6, 7), "what it held is lost, with the rank of its replica that is gone"
    newcomer = shared(state, world_of(2, (0, 1, 2)), report("0.0", (0, 1, 2, 3)), report("1.0", (4, 5, 6, 7)),
                      sources={"2.0": "0.0"})  # fmt: skip
    assert newcomer.indices["2.0"] == ()


def test_leavers_go_on_with_what_they_have_and_are_given_nothing_new() -> None:
    state, world = state_of(Balanced(), 4), world_of(2, (0, 1, 3))
    begun = report("1.0", (2,), (3,))
    given = shared(state, world, report("0.0", (0, 1)), begun, report("3.0", work=None), leaving={"1.0", "3.0"})
    assert given.indices["3.0"] == ()
    assert set(given.indices["1.0"]) >= {2, 3}
    assert sorted(index for held in given.indices.values() for index in held) == list(range(B))


def test_leavers_of_the_old_world_would_have_begun_nothing() -> None:
    state = state_of(Balanced(), 4, leaving=frozenset({"0.0"}))
    given = shared(state, world_of(2, (0, 1, 2)), report("0.0", work=None), report("1.0", (0, 1, 2)),
                   report("2.0", work=None))  # fmt: skip
    # Of 8 over replicas 1, 2 and 3, the second has 3 to 5, and the dead one had the rest.
    assert given.lost == (6, 7)


def test_only_what_the_dead_had_is_dropped() -> None:
    """Who has not come to the step keeps what it would have begun."""
    state = state_of(AdaptiveWorld(4), 4)
    given = shared(state, world_of(2, (0, 1, 3)), report("0.0", (0, 1)), report("1.0", (2,), (3,)),
                   report("3.0", work=None))  # fmt: skip
    assert given.indices == {"0.0": (0, 1), "1.0": (2, 3), "3.0": (6, 7)}
    assert (given.dropped, given.lost) == (frozenset({4, 5}), (4, 5))


def test_no_evaluation_is_cut_short() -> None:
    given = shared(state_of(AdaptiveWorld(2), 2), world_of(2, (0,)), report("0.0", (0, 1), (2, 3), work=EVALUATION))
    assert (given.indices, given.dropped) == ({"0.0": tuple(range(B))}, frozenset())


def test_lost_microbatches_go_by_speed() -> None:
    state, world = state_of(Weighted(), 3, speeds={0: 1.0, 1: 3.0, 2: 1.0}), world_of(2, (0, 1))
    reports = report("0.0", (0, 1)), report("1.0", work=None)
    given = shared(state, world, *reports, speeds={0: 1.0, 1: 7.0})
    # In the old world replica 1 would have had 2 to 6; the dead one had 7.
    assert given.lost == (7,)
    assert given.indices == {"0.0": (0, 1), "1.0": (2, 3, 4, 5, 6, 7)}


# --- speeds


def ranks(**facts: tuple[int, float]) -> Mapping[str, Rank]:
    return {
        f"{name[1]}.{name[2]}": Rank(name, Seat(0), computed=computed, busy=busy)
        for name, (computed, busy) in facts.items()
    }


def test_a_speed_is_what_was_computed_by_the_time_that_it_took() -> None:
    known = ranks(r00=(6, 3.0), r10=(6, 12.0), r20=(0, 0.0), r30=(2, 0.0))
    assert speeds(known, world_of(1, (0, 1, 2, 3))) == {0: 2.0, 1: 0.5}


@pytest.mark.parametrize("slow", [(4, 4.0), (0, 0.0)])
def test_a_replica_is_as_fast_as_its_slowest_rank(slow: tuple[int, float]) -> None:
    known = ranks(r00=(4, 2.0), r01=slow)
    assert speeds(known, world_of(1, (0,), size=2)) == ({0: 1.0} if slow[0] else {})


def test_a_replica_is_a_shadow_although_one_of_its_ranks_never_heard_of_it() -> None:
    world = world_of(1, (0, 1, 2), 2)
    owners = [report(f"{replica}.{place}", tuple(range(4 * replica, 4 * replica + 4))) for replica in (0, 1)
              for place in (0, 1)]  # fmt: skip
    given = shared(state_of(Versatile(), 3, 2), world, *owners, report("2.0"), report("2.1", (0, 1), (2, 3), repeats=0))
    assert given.shadows == {"2.0": "0.0", "2.1": "0.1"}
    assert given.indices["2.0"] == given.indices["2.1"] == (0, 1, 2, 3)

"""Groups by generation: built behind the back of training, interrupted from anywhere, freed off the path."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from everstep.actors.messages import Open, StoreAddress
from everstep.actors.rank.groups import Groups
from everstep.conf.errors import CommunicatorError
from everstep.policies.world import Generation, Member, Position, Seat, World

PATIENCE_S = 10.0


def generation(number: int) -> Generation:
    return Generation(1, number)


def opening(number: int) -> Open:
    world = World(generation(number), (Member("me", Seat(0)),))
    return Open(world, Position(0), {"me": ()}, StoreAddress("host", 1, "root"))


def eventually(what: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while not what() and time.monotonic() < deadline:
        time.sleep(0.002)
    return what()


@dataclass
class FakeCommunicator:
    number: int
    interrupted: int = 0
    closed: int = 0
    learned: int = 0

    def learn(self) -> None:
        self.learned += 1
        raise CommunicatorError("the group broke before it was known")

    def interrupt(self) -> None:
        self.interrupted += 1

    def close(self) -> None:
        self.closed += 1

    def accused(self, error: CommunicatorError) -> int | None:
        return 7


@dataclass
class Bench:
    """Groups whose builds end when they are told to."""

    errors: dict[int, CommunicatorError] = field(default_factory=dict)
    held: dict[int, threading.Event] = field(default_factory=dict)
    made: dict[int, FakeCommunicator] = field(default_factory=dict)
    built: list[int] = field(default_factory=list)
    failed: list[tuple[int, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.groups = Groups(
            self._build,  # type: ignore[arg-type]
            lambda generation, seconds: self.built.append(generation.number),
            lambda generation, error: self.failed.append((generation.number, str(error))),
        )

    def hold(self, number: int) -> threading.Event:
        return self.held.setdefault(number, threading.Event())

    def _build(self, message: Open) -> FakeCommunicator:
        number = message.world.generation.number
        if number in self.held:
            self.held[number].wait(PATIENCE_S)
        if number in self.errors:
            raise self.errors[number]
        self.made[number] = FakeCommunicator(number)
        return self.made[number]

    def get(self, number: int, timeout: float = PATIENCE_S) -> FakeCommunicator:
        return self.groups.get(generation(number), timeout)  # type: ignore[return-value]


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    for event in bench.held.values():
        event.set()


def test_a_group_is_used_before_it_is_known_and_even_if_it_broke_before(bench: Bench) -> None:
    bench.groups.open(opening(1))
    communicator = bench.get(1)
    assert eventually(lambda: communicator.learned == 1)
    assert bench.get(1) is communicator
    assert bench.failed == []


def test_a_group_is_built_while_training_goes_on(bench: Bench) -> None:
    held = bench.hold(1)
    started = time.monotonic()
    bench.groups.open(opening(1))
    assert time.monotonic() - started < 1
    assert bench.built == []
    held.set()
    assert bench.get(1).number == 1
    assert eventually(lambda: bench.built == [1])


def test_one_that_waits_for_the_dead_does_not_hold_up_the_next(bench: Bench) -> None:
    bench.hold(1)
    bench.groups.open(opening(1))
    bench.groups.open(opening(2))
    assert bench.get(2).number == 2


def test_a_group_that_takes_too_long_is_an_error_of_communication(bench: Bench) -> None:
    bench.hold(1)
    bench.groups.open(opening(1))
    with pytest.raises(CommunicatorError, match=r"the group of generation 1\.1 took over 0\.05 s to build"):
        bench.get(1, 0.05)


def test_a_group_that_cannot_be_built_is_told_of_once(bench: Bench) -> None:
    bench.errors[1] = CommunicatorError("a peer did not come")
    bench.groups.open(opening(1))
    with pytest.raises(CommunicatorError, match="a peer did not come"):
        bench.get(1)
    assert eventually(lambda: bench.failed == [(1, "a peer did not come")])
    assert bench.built == []
    bench.groups.interrupt(generation(1))
    assert bench.groups.accused(generation(1), CommunicatorError("x")) is None


def test_a_generation_that_nobody_opened_is_over(bench: Bench) -> None:
    with pytest.raises(CommunicatorError, match=r"generation 1\.5 is over"):
        bench.get(5)
    bench.groups.interrupt(generation(5))


def test_an_interruption_wakes_whoever_waits_for_a_group_that_is_still_built(bench: Bench) -> None:
    held = bench.hold(1)
    bench.groups.open(opening(1))
    woken: list[str] = []

    def wait() -> None:
        try:
            bench.get(1)
        except CommunicatorError as error:
            woken.append(str(error))

    waiter = threading.Thread(target=wait)
    waiter.start()
    time.sleep(0.02)
    bench.groups.interrupt(generation(1))
    waiter.join(PATIENCE_S)
    assert woken == ["generation 1.1 was abandoned while it was built"]
    # What comes of the build afterwards belongs to nobody.
    held.set()
    assert eventually(lambda: 1 in bench.made and bench.made[1].closed == 1)
    assert bench.built == []
    assert bench.made[1].interrupted == 0


def test_an_abandoned_build_that_fails_late_is_not_told_of_again(bench: Bench) -> None:
    held = bench.hold(1)
    bench.errors[1] = CommunicatorError("a peer did not come")
    bench.groups.open(opening(1))
    bench.groups.interrupt(generation(1))
    held.set()
    time.sleep(0.05)
    assert bench.failed == []


def test_an_interruption_reaches_a_group_that_is_built(bench: Bench) -> None:
    bench.groups.open(opening(1))
    bench.groups.open(opening(2))
    first, second = bench.get(1), bench.get(2)
    bench.groups.interrupt(generation(1))
    assert (first.interrupted, second.interrupted) == (1, 0)
    assert bench.groups.accused(generation(1), CommunicatorError("x")) == 7


def test_older_groups_are_retired_and_closed(bench: Bench) -> None:
    for number in (1, 2, 3):
        bench.groups.open(opening(number))
        bench.get(number)
    bench.groups.retire(generation(3))
    assert eventually(lambda: bench.made[1].closed == bench.made[2].closed == 1)
    assert bench.made[3].closed == 0
    assert bench.get(3).number == 3
    for number in (1, 2):
        with pytest.raises(CommunicatorError, match="is over"):
            bench.get(number)
    bench.groups.retire(generation(3))
    assert bench.made[1].closed == 1


def test_retiring_does_not_wait_for_a_build_that_is_stuck(bench: Bench) -> None:
    held = bench.hold(1)
    bench.groups.open(opening(1))
    bench.groups.open(opening(2))
    bench.get(2)
    started = time.monotonic()
    bench.groups.retire(generation(2))
    assert time.monotonic() - started < 1
    held.set()
    assert eventually(lambda: 1 in bench.made and bench.made[1].closed == 1)


def test_at_the_end_of_a_rank_nothing_is_freed(bench: Bench) -> None:
    """To free a group joins threads that may wait for the dead; the end of the process does it faster."""
    bench.groups.open(opening(1))
    bench.get(1)
    bench.groups.leave()
    time.sleep(0.02)
    assert bench.made[1].closed == 0

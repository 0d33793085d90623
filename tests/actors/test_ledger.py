"""The ledger: two threads, one transaction, and a report that is a promise."""

import threading
import time

import pytest
from everstep.actors.messages import FromRank, Open, Prepare, Restore, StoreAddress
from everstep.actors.rank.ledger import RecoveryTimeout, Rewound, after
from everstep.actors.rank.transaction import ProtocolError, Verdict
from everstep.conf.errors import CommunicatorError, LoopError
from everstep.policies.world import Member, Position, Seat, Work, WorkKind, World

from .ledger_bench import START, WORK, Bench, generation

CLOSED = CommunicatorError("closed by peer")


def test_what_follows_a_decision() -> None:
    training, evaluation = WorkKind.TRAINING, WorkKind.EVALUATION
    assert after(Position(3), Verdict.COMMIT, training) == Position(4)
    assert after(Position(3), Verdict.SKIP, training) == Position(4)
    assert after(Position(3), Verdict.STOP, training) == Position(4)
    assert after(Position(3), Verdict.VOID, training) == Position(3, attempt=1)
    assert after(Position(3, attempt=1), Verdict.VOID, training) == Position(3, attempt=2)
    assert after(Position(3, attempt=2), Verdict.COMMIT, training) == Position(4)
    assert after(Position(3), Verdict.COMMIT, evaluation) == Position(3, unit=1)
    assert after(Position(3, unit=1), Verdict.VOID, training) == Position(3, unit=1, attempt=1)
    assert after(Position(3, unit=1), Verdict.COMMIT, training) == Position(4)


# --- decisions


def test_a_rank_that_comes_first_to_its_work_plans_for_itself() -> None:
    bench = Bench().vote()
    assert bench.ledger.decide(START, generation(1), Verdict.COMMIT)
    transaction = bench.ledger.transaction
    assert (transaction.position, transaction.work, transaction.indices) == (Position(1), None, ())
    transaction = bench.ledger.take_up(Position(1), WORK, 1.0)
    assert transaction.indices == (0, 1), "six microbatches over three replicas"
    bench = Bench()
    bench.open(1, (0, 1, 2), peers=2)
    for index in range(3):
        bench.ledger.fold(START, index)
    assert bench.ledger.enter(START, generation(1))
    assert bench.ledger.decide(START, generation(1), Verdict.VOID)
    assert bench.ledger.transaction.position == Position(0, attempt=1)
    assert bench.ledger.take_up(Position(0, attempt=1), WORK, 1.0).indices == (0, 1, 2)


def test_what_was_given_out_is_not_planned_again() -> None:
    bench = Bench()
    bench.open(1, (3, 5))
    assert bench.ledger.take_up(START, WORK, 1.0).indices == (3, 5)


def test_another_work_than_the_peers_is_refused() -> None:
    bench = Bench()
    bench.open(1, (3, 5))
    with pytest.raises(LoopError, match="this rank does evaluation over 2 microbatches, another one training over 6"):
        bench.ledger.take_up(START, Work(WorkKind.EVALUATION, 2), 1.0)


def test_nothing_is_begun_after_a_report_that_did_not_tell_of_it() -> None:
    """Whoever planned in the old world then would compute what is given to others in the new one."""
    bench = Bench().vote()
    assert bench.ledger.decide(START, generation(1), Verdict.COMMIT)
    bench.ledger.prepare(Prepare(generation(2)))
    assert bench.reports[-1].work is None
    taken: list[tuple[int, ...]] = []
    thread = threading.Thread(
        target=lambda: taken.append(bench.ledger.take_up(Position(1), WORK, 10.0).indices), daemon=True
    )
    thread.start()
    thread.join(0.05)
    assert taken == []
    members = (Member("me", Seat(0)), Member("peer-1", Seat(1)))
    bench.ledger.open(Open(World(generation(2), members), Position(1), {}, StoreAddress("host", 1, "root")))
    thread.join(10.0)
    assert taken == [(0, 1, 2)], "six microbatches over the two replicas that are left"


def test_a_recovery_that_does_not_end_is_not_waited_for_for_ever() -> None:
    bench = Bench().vote()
    assert bench.ledger.decide(START, generation(1), Verdict.COMMIT)
    bench.ledger.prepare(Prepare(generation(2)))
    with pytest.raises(RecoveryTimeout):
        bench.ledger.take_up(Position(1), WORK, 0.01)


def test_the_vote_is_not_entered_while_something_is_owed() -> None:
    bench = Bench()
    bench.open(1)
    bench.ledger.fold(START, 0)
    assert not bench.ledger.enter(START, generation(1))


def test_neither_entered_nor_decided_in_an_abandoned_generation() -> None:
    bench = Bench().vote()
    bench.ledger.prepare(Prepare(generation(2)))
    assert not bench.ledger.enter(START, generation(1))
    assert not bench.ledger.decide(START, generation(1), Verdict.COMMIT)
    assert bench.ledger.transaction.position == START


def test_a_decision_of_a_generation_that_is_over_is_none() -> None:
    bench = Bench().vote()
    bench.ledger.prepare(Prepare(generation(2)))
    bench.open(2)
    assert not bench.ledger.decide(START, generation(1), Verdict.COMMIT)
    with pytest.raises(ProtocolError):
        # Current it is, but this rank has not voted in it.
        bench.ledger.decide(START, generation(2), Verdict.COMMIT)


def test_a_position_that_a_peer_has_decided_is_not_decided_again() -> None:
    bench = Bench().vote()
    bench.ledger.prepare(Prepare(generation(2)))
    bench.open(2, (3, 4), Position(1))
    assert not bench.ledger.enter(START, generation(2))
    assert not bench.ledger.decide(START, generation(2), Verdict.COMMIT)
    assert bench.ledger.transaction.position == Position(1)


# --- prepare


def test_prepare_is_answered_with_a_report_and_then_the_group_is_left() -> None:
    bench = Bench()
    bench.open(1)
    bench.ledger.fold(START, 1)
    bench.ledger.prepare(Prepare(generation(2)))
    assert [what for what, _ in bench.log] == ["open", "before report", "send", "interrupt"]
    (report,) = bench.reports
    assert (report.abandons, report.position) == (generation(1), START)
    assert (report.done, report.owed, report.cause) == ({1}, {0}, None)
    assert bench.log[-1] == ("interrupt", 1)


def test_prepare_again_is_answered_again_with_what_was_done_meanwhile() -> None:
    bench = Bench()
    bench.open(1)
    bench.ledger.prepare(Prepare(generation(2)))
    bench.ledger.fold(START, 0)
    bench.ledger.prepare(Prepare(generation(2)))
    assert [report.done for report in bench.reports] == [frozenset(), {0}]


def test_a_stale_prepare_changes_nothing() -> None:
    bench = Bench()
    bench.ledger.prepare(Prepare(generation(3)))
    bench.open(3)
    for number in (1, 2, 3):
        bench.ledger.prepare(Prepare(generation(number)))
    assert bench.reports == []
    assert bench.ledger.transaction.current(generation(3))


def test_before_the_first_generation_there_is_nothing_to_report() -> None:
    bench = Bench()
    bench.ledger.prepare(Prepare(generation(2)))
    assert bench.log == []


def test_an_open_older_than_a_promise_is_refused() -> None:
    bench = Bench()
    bench.open(1)
    bench.ledger.prepare(Prepare(generation(3)))
    bench.open(2)
    assert bench.ledger.transaction.generation == generation(1)
    assert bench.ledger.transaction.abandoned
    assert ("open", 2) not in bench.log
    bench.open(3)
    assert bench.ledger.transaction.current(generation(3))


def test_a_stale_open_builds_no_group() -> None:
    bench = Bench()
    bench.open(2)
    bench.open(1)
    bench.open(2)
    assert bench.log == [("open", 2)]


# --- abandon


def test_a_failed_collective_leaves_the_group_before_it_is_reported() -> None:
    """The sockets go down first, so that those who are not neighbours of the dead fail too."""
    bench = Bench(place=2)
    bench.open(1)
    bench.ledger.abandon(generation(1), CLOSED)
    assert [what for what, _ in bench.log] == ["open", "interrupt", "before report", "send"]
    (report,) = bench.reports
    assert (report.cause, report.accused) == ("closed by peer", "peer-2")


def test_nobody_is_accused_who_cannot_be_named() -> None:
    bench = Bench(place=None)
    bench.open(1)
    bench.ledger.abandon(generation(1), CLOSED)
    assert bench.reports[0].accused is None


def test_a_generation_is_abandoned_once() -> None:
    bench = Bench()
    bench.open(1)
    bench.ledger.prepare(Prepare(generation(2)))
    bench.ledger.abandon(generation(1), CLOSED)
    bench.ledger.abandon(generation(1), CLOSED)
    assert len(bench.reports) == 1


def test_an_old_groups_failure_does_not_touch_the_new_one() -> None:
    bench = Bench()
    bench.open(1)
    bench.ledger.prepare(Prepare(generation(2)))
    bench.open(2)
    bench.ledger.abandon(generation(1), CLOSED)
    assert len(bench.reports) == 1
    assert bench.ledger.transaction.current(generation(2))


# --- waiting


def test_waiting_ends_when_a_generation_is_opened() -> None:
    bench = Bench()
    opener = threading.Timer(0.05, bench.open, (1,))
    opener.start()
    started = time.monotonic()
    assert bench.ledger.await_open(30.0).generation == generation(1)
    assert time.monotonic() - started < 10
    opener.join()


def test_an_abandoned_generation_is_no_end_of_the_wait() -> None:
    bench = Bench()
    bench.open(1)
    bench.ledger.prepare(Prepare(generation(2)))
    opener = threading.Timer(0.05, bench.open, (2,))
    opener.start()
    assert bench.ledger.await_open(10.0).generation == generation(2)
    opener.join()


def test_waiting_has_an_end() -> None:
    bench = Bench()
    started = time.monotonic()
    with pytest.raises(RecoveryTimeout, match=r"no generation was opened for 0\.\d+ s at step 0"):
        bench.ledger.await_open(0.05)
    with pytest.raises(RecoveryTimeout, match="should have ended this rank within"):
        bench.ledger.await_end(0.05)
    assert time.monotonic() - started < 5


def test_who_has_finished_learns_of_every_later_generation() -> None:
    bench = Bench()
    bench.open(1)
    assert bench.ledger.await_release(generation(1), 0.0), "nothing came, and its patience is over"
    bench.ledger.prepare(Prepare(generation(2)))
    assert bench.ledger.await_release(generation(1), 0.0), "what is only prepared changes nothing"
    bench.open(2)
    assert not bench.ledger.await_release(generation(1), 10.0)
    assert bench.ledger.await_release(generation(2), 0.0)
    bench.ledger.release()
    assert bench.ledger.await_release(generation(1), 10.0)


def test_who_has_finished_begins_anew_when_everybody_goes_back() -> None:
    bench = Bench()
    bench.open(1)
    assert bench.ledger.stands() == generation(1)
    world = World(generation(2), (Member("me", Seat(0)),))
    restore = Restore("storage", 3)
    store = StoreAddress("host", 1, "root")
    bench.ledger.open(Open(world, Position(3), {}, store, sources={"me": "me"}, restore=restore))
    with pytest.raises(Rewound):
        bench.ledger.await_release(generation(1), 10.0)
    # Who comes to its next position has looked where that is before it heard of this.
    with pytest.raises(Rewound):
        bench.ledger.take_up(START, WORK, 10.0)
    # Nor may it say of its old state that it has finished in the new generation.
    with pytest.raises(Rewound):
        bench.ledger.stands()


# --- the race


@pytest.mark.parametrize("late", ["neither", "training", "control"])
def test_a_report_is_a_promise_whoever_comes_first(late: str) -> None:
    """Training sees the vote whole at the moment at which control is asked to report; again and again."""
    outcomes = set()
    for _ in range(200 if late == "neither" else 10):
        bench = Bench().vote()
        barrier = threading.Barrier(2)

        def decide(bench: Bench = bench, barrier: threading.Barrier = barrier) -> None:
            barrier.wait(10)
            time.sleep(0.01 * (late == "training"))
            bench.log.append(("decided", bench.ledger.decide(START, generation(1), Verdict.COMMIT)))

        training = threading.Thread(target=decide)
        training.start()
        barrier.wait(10)
        time.sleep(0.01 * (late == "control"))
        bench.ledger.prepare(Prepare(generation(2)))
        training.join(10)
        (report,) = bench.reports
        decided = dict(bench.log)["decided"]
        assert report.position == (Position(1) if decided else START), "it decided what it had promised not to"
        assert bench.ledger.transaction.position == report.position
        outcomes.add(decided)
    assert late != "training" or False in outcomes
    assert late != "control" or True in outcomes


def test_nothing_is_decided_while_the_report_is_on_its_way_out() -> None:
    bench = Bench()
    sending, go_on = threading.Event(), threading.Event()
    decided: list[bool] = []

    def send(message: FromRank) -> None:
        sending.set()
        go_on.wait(10)
        bench.log.append(("send", message))

    bench.ledger._send = send
    bench.vote()
    control = threading.Thread(target=bench.ledger.prepare, args=(Prepare(generation(2)),))
    control.start()
    assert sending.wait(10)
    training = threading.Thread(
        target=lambda: decided.append(bench.ledger.decide(START, generation(1), Verdict.COMMIT))
    )
    training.start()
    training.join(0.05)
    go_on.set()
    control.join(10)
    training.join(10)
    assert decided == [False]
    assert bench.reports[0].position == START

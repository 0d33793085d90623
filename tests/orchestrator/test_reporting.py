"""Many reports at once are what they are one by one; only faster."""

import asyncio
from random import Random

import pytest
from everstep.actors.messages import Heartbeat, Report
from everstep.orchestrator.inbox import Inbox
from everstep.orchestrator.machine.events import Event, Heard, Reports, Tick
from everstep.orchestrator.machine.reporting import Alike, alike
from everstep.orchestrator.machine.settings import Settings
from everstep.orchestrator.machine.state import Standing, State
from everstep.orchestrator.machine.table import kind
from everstep.orchestrator.machine.transition import advance
from everstep.orchestrator.simulation.protocol import controllers
from everstep.orchestrator.simulation.protocol.simulation import Simulation
from everstep.policies.world import Generation, Position, Work, WorkKind
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from .machine_script import Script, name
from .test_machine_hostile import WORKLOADS, Liar, Listener, recovery_policy

HERE, TRAINING = Position(3), Work(WorkKind.TRAINING, 8)


def report(rank: int, position: Position = HERE, work: Work | None = TRAINING, *, lacks: bool = False) -> Report:
    return Report(name(rank), Generation(1, 1), position, frozenset(), frozenset(), work=work, lacks=lacks)


def one_by_one(state: State, heard: tuple[Heard, ...], now: float) -> tuple[State, list[object]]:
    done: list[object] = []
    for each in heard:
        state, actions = advance(state, each, now)
        done += actions
    return state, done


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 1_000_000))
def test_batches_of_anything_change_what_their_reports_change(seed: int) -> None:
    chance = Random(seed)
    policy = recovery_policy(chance.choice(["auto", "swap", "shrink", "restart"]))
    listener = Listener(chance, WORKLOADS[chance.choice(sorted(WORKLOADS))](), policy).boot()
    liar = Liar(chance)
    for _ in range(30):
        names = chance.sample(sorted(listener.state.ranks), chance.randrange(1, len(listener.state.ranks)))
        heard = tuple(Heard(each, liar.report(each, listener.state)) for each in names)
        assert advance(listener.state, Reports(heard), listener.now) == one_by_one(listener.state, heard, listener.now)
        listener.hear(Reports(heard))
        listener.hear(liar.says(listener.state))


def recorded(seed: int) -> list[tuple[Settings, list[tuple[Event, float]]]]:
    """Everything that the machine heard in each controller life of a simulated run, with the time."""
    lives: dict[int, tuple[Settings, list[tuple[Event, float]]]] = {}
    with pytest.MonkeyPatch.context() as patch:

        def listening(state: State, said: Event, now: float) -> tuple[State, list[object]]:
            lives.setdefault(state.settings.term, (state.settings, []))[1].append((said, now))
            return advance(state, said, now)  # type: ignore[return-value]

        patch.setattr(controllers, "advance", listening)
        Simulation(seed).run()
    return list(lives.values())


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 100_000))
def test_a_whole_run_is_the_same_if_reports_that_follow_each_other_come_as_one(seed: int) -> None:
    for held, story in recorded(seed):
        alone, together, waiting, then = State(held), State(held), list[Heard](), 0.0
        done: list[object] = []
        at_once: list[object] = []
        for said, now in [*story, (Tick(), story[-1][1])]:
            if waiting and not (isinstance(said, Heard) and isinstance(said.message, Report) and now == then):
                event("several" if len(waiting) > 1 else "one")
                together, actions = advance(together, Reports(tuple(waiting)), then)
                at_once += actions
                waiting = []
            alone, actions = advance(alone, said, now)
            done += actions
            if isinstance(said, Heard) and isinstance(said.message, Report):
                waiting, then = [*waiting, said], now
            else:
                together, actions = advance(together, said, now)
                at_once += actions
        assert (together, at_once) == (alone, done)


def test_accusations_are_counted() -> None:
    script = Script(ranks=4).boot()
    script.end(3)
    heard = []
    for rank in range(3):
        world = script.generation
        held = frozenset(script.indices(rank))
        said = Report(name(rank), world, Position(0), frozenset(), held, "closed", name(3), TRAINING)
        heard.append(Heard(name(rank), said))
    script.happen(Reports(tuple(heard[:2])))
    assert script.state.accusations == {name(3): 2}
    assert script.state.recovery is not None
    assert set(script.state.recovery.silent) == {name(2)}
    script.happen(Reports(tuple(heard[2:])))
    assert script.state.recovery.opened


def test_a_rank_that_finished_stays_so_while_it_reports() -> None:
    script = Script(ranks=3).boot()
    script.finish(0)
    script.end(2)
    held = Report(name(0), script.generation, Position(script.steps), frozenset(), frozenset())
    script.happen(Reports((Heard(name(0), held),)))
    assert script.standing(0) is Standing.FINISHED
    assert script.state.recovery is not None
    assert set(script.state.recovery.silent) == {name(1)}


def test_in_tables_they_count_as_reports() -> None:
    assert kind(Reports(())) is kind(Heard(name(0), report(0))) is Report


def test_who_stands_where() -> None:
    before, evaluation = Position(2), Work(WorkKind.EVALUATION, 8)
    said = [report(0), report(1, before), report(2), report(3, work=None), report(4, work=evaluation)]
    said += [report(5, lacks=True), report(6, Position(3, 1)), report(7, Position(3, 0, 1)), report(8)]
    assert alike({held.incarnation: held for held in said}) == (
        Alike(HERE, TRAINING, False, [name(0), name(2), name(8)]),
        Alike(before, TRAINING, False, [name(1)]),
        Alike(HERE, None, False, [name(3)]),
        Alike(HERE, evaluation, False, [name(4)]),
        Alike(HERE, TRAINING, True, [name(5)]),
        Alike(Position(3, 1), TRAINING, False, [name(6)]),
        Alike(Position(3, 0, 1), TRAINING, False, [name(7)]),
    )


def test_reports_that_wait_behind_each_other_come_as_one() -> None:
    async def hear() -> list[object]:
        inbox = Inbox()
        for said in (report(0), Heartbeat(name(0), HERE, ""), report(1), report(2), report(0)):
            inbox.put_nowait(Heard(said.incarnation, said))
        inbox.put_nowait(Tick())
        found: list[object] = []
        while not inbox.empty():
            found.append(await inbox.get())
        return found

    first, beat, several, tick = asyncio.run(hear())
    assert first == Heard(name(0), report(0))
    assert isinstance(beat, Heard)
    assert several == Reports((Heard(name(1), report(1)), Heard(name(2), report(2)), Heard(name(0), report(0))))
    assert tick == Tick()

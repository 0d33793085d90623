"""Messages that come twice, late or in another order: simulated runs are played to the machine once more with them."""

from collections.abc import Sequence
from itertools import permutations
from random import Random

import pytest
from everstep.actors.messages import Fenced, Finished, Heartbeat, Joined, Open, Release, Report, Resumed
from everstep.orchestrator.machine.events import Action, Ended, Event, Heard, Record, Send
from everstep.orchestrator.machine.settings import Settings
from everstep.orchestrator.machine.state import State
from everstep.orchestrator.machine.transition import advance
from everstep.orchestrator.simulation.protocol import controllers
from everstep.orchestrator.simulation.protocol.simulation import Simulation
from everstep.policies.values import changed
from everstep.policies.world import Position
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from .machine_script import START, Script, name, sent

Story = list[tuple[Event, float]]


def recorded(seed: int) -> list[tuple[Settings, Story]]:
    """Everything that the machine heard in each controller life of a simulated run, with the time."""
    lives: dict[int, tuple[Settings, Story]] = {}
    with pytest.MonkeyPatch.context() as patch:

        def listening(state: State, event: Event, now: float) -> tuple[State, list[Action]]:
            lives.setdefault(state.settings.term, (state.settings, []))[1].append((event, now))
            return advance(state, event, now)

        patch.setattr(controllers, "advance", listening)
        Simulation(seed).run()
    return list(lives.values())


def played(held: Settings, story: Story) -> tuple[State, list[Action]]:
    """What the machine comes to, and all that it does but for refusing, and for letting go whoever was let go."""
    state, done, released = State(held), [], set()
    for one, now in story:
        state, actions = advance(state, one, now)
        for action in actions:
            leaves = action.incarnation if isinstance(action, Send) and isinstance(action.message, Release) else None
            if not is_refusal(action) and leaves not in released:
                done.append(action)
            if leaves is not None:
                released.add(leaves)
    # What is kept for later is kept as often as it came.
    return changed(state, adoption=None), done


def is_refusal(action: Action) -> bool:
    """Also that of somebody who was fenced before."""
    return isinstance(action, Record) or (isinstance(action, Send) and isinstance(action.message, Fenced))


def is_stale(event: Event, state: State) -> bool:
    """Whether a message speaks of a generation that is over."""
    if not isinstance(event, Heard) or state.world is None:
        return False
    match event.message:
        case Report(abandons=of, promised=promised):
            return of < state.world.generation and (promised is None or promised <= state.world.generation)
        case Joined(generation=of) | Resumed(generation=of) | Finished(generation=of):
            return of < state.world.generation
        case Heartbeat():
            return False
    # Whoever says these says them once in its life.
    return True


def with_repeats(held: Settings, story: Story, chance: Random) -> Story:
    """The same run with messages doubled at once, and with stale ones in between.

    A late message is a sign of life as well. So it comes with another one of the same rank, which is one anyway, and
    only while that one lives: the last words of the dead are heard too.
    """
    state, longer, heard = State(held), [], {}
    for one, now in story:
        state, _ = advance(state, one, now)
        longer.append((one, now))
        if isinstance(one, Heard):
            earlier = heard.setdefault(one.incarnation, [])
            rank = state.ranks.get(one.incarnation)
            if rank is not None and rank.standing.living:
                longer += [(late, now) for late in earlier if is_stale(late, state) and chance.random() < 0.1]
            earlier.append(one)
        # A heartbeat is an occasion to look around: a second one may do what the next one does.
        beat = isinstance(one, Heard) and isinstance(one.message, Heartbeat)
        if isinstance(one, Heard | Ended) and not beat and chance.random() < 0.2:
            longer.append((one, now))
    return longer


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 100_000), st.integers(0, 1_000))
def test_what_comes_twice_or_late_changes_nothing_in_a_whole_run(seed: int, repeats: int) -> None:
    for held, story in recorded(seed):
        longer = with_repeats(held, story, Random(repeats))
        event("repeats" if len(longer) > len(story) else "no repeats")
        once, twice = played(held, story), played(held, longer)
        assert twice[1] == once[1]
        assert twice[0] == once[0]


def opened_after(order: Sequence[int], done: Sequence[int], behind: int) -> Open:
    """What is opened to rank 0 of five after rank 4 died, if the survivors report in this order."""
    script = Script(ranks=5, microbatches=10).boot()
    script.end(4)
    for rank in order:
        held = script.indices(rank)
        if rank == behind:
            script.report(rank, done=held, owed=())
        else:
            script.report(rank, Position(1) if behind >= 0 else START, done=held[: done[rank]] if behind < 0 else ())
    return sent(script.history, 0, Open)[-1]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 2), min_size=4, max_size=4), st.integers(-1, 3))
def test_the_order_of_reports_does_not_matter(done: list[int], behind: int) -> None:
    """Some have done more than others; one may be a position behind the others."""
    first, *others = (opened_after(order, done, behind) for order in permutations(range(4)))
    assert all(other == first for other in others)
    assert {name(rank) for rank in range(4)} == set(first.world.incarnations)

"""The table of phases and standings is what the machine does: every move of many runs is in it, and nothing else is."""

import runpy
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pytest
from everstep.orchestrator.machine import table
from everstep.orchestrator.machine.events import Action, Event
from everstep.orchestrator.machine.state import Standing, State
from everstep.orchestrator.machine.table import PHASES, STANDINGS, Row, diagram, kind, markdown
from everstep.orchestrator.machine.transition import advance
from everstep.orchestrator.simulation.protocol import controllers
from everstep.orchestrator.simulation.protocol.checkers import Violation
from everstep.orchestrator.simulation.protocol.simulation import Simulation
from everstep.orchestrator.view import Phase

from .scenarios.language import read

SCENARIOS = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))
SEEDS = 100
DOCUMENT = Path(__file__).parents[2] / "docs" / "machine.md"

Move = tuple[Phase | Standing | None, type, Phase | Standing]
Found = dict[Move, str]


class Recorder:
    """A machine that remembers every move, and in which run it was first made."""

    def __init__(self) -> None:
        self.phases: Found = {}
        self.standings: Found = {}
        self.run = ""

    def advance(self, state: State, event: Event, now: float) -> tuple[State, list[Action]]:
        after, actions = advance(state, event, now)
        if after.phase is not state.phase:
            self.phases.setdefault((state.phase, kind(event), after.phase), self.run)
        for name, rank in after.ranks.items() if after.ranks is not state.ranks else ():
            before = state.ranks[name].standing if name in state.ranks else None
            if rank.standing is not before:
                self.standings.setdefault((before, kind(event), rank.standing), self.run)
        return after, actions


@pytest.fixture(scope="module")
def told() -> Recorder:
    """After all scenarios."""
    recorder = Recorder()
    for path in SCENARIOS:
        recorder.run = path.name
        read(path).played(recorder.advance)
    return recorder


@pytest.fixture(scope="module")
def simulated() -> Recorder:
    """After many simulated runs."""
    recorder = Recorder()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(controllers, "advance", recorder.advance)
        for seed in range(SEEDS):
            recorder.run = f"seed {seed}"
            # Whether anything forbidden happens in them is asked elsewhere.
            with suppress(Violation):
                Simulation(seed).run()
    return recorder


def unknown(rows: Iterable[Row], found: Found) -> list[str]:
    """Moves that no row covers, or more than one."""
    counts = {move: sum(row.covers(*move) for row in rows) for move in found}
    return [f"{move} in {found[move]}: {count} rows" for move, count in counts.items() if count != 1]


def untaken(rows: Iterable[Row], found: Found) -> list[str]:
    """Parts of rows that no run has shown; where any event of a group may stand, one of them is enough."""
    missing = []
    for row in rows:
        taken = [move for move in found if row.covers(*move)]
        shown = {place for before, _, after in taken for place in (("from", before), ("to", after))}
        missing += [f"{row.why}: from {place}" for place in row.before if ("from", place) not in shown]
        missing += [f"{row.why}: to {place}" for place in row.after if ("to", place) not in shown]
        events, any_of = {event for _, event, _ in taken}, _any_of(row)
        missing += [f"{row.why}: on {event.__name__}" for event in row.events if event not in events | any_of]
        if any_of and not events & any_of:
            missing.append(f"{row.why}: on any of {sorted(event.__name__ for event in any_of)}")
    return missing


def _any_of(row: Row) -> set[type]:
    """Events that stand for the same in this row."""
    groups = (table.PLANNING, table.ADOPTION, table.MESSAGES)
    return {event for many in groups if set(many) <= set(row.events) for event in many}


def test_every_move_of_a_scenario_is_in_the_table_once(told: Recorder) -> None:
    assert unknown(PHASES, told.phases) == []
    assert unknown(STANDINGS, told.standings) == []


def test_every_move_of_a_simulated_run_is_in_the_table_once(simulated: Recorder) -> None:
    assert unknown(PHASES, simulated.phases) == []
    assert unknown(STANDINGS, simulated.standings) == []
    assert len(simulated.phases) > 10
    assert len(simulated.standings) > 20


def test_every_row_is_taken_by_some_scenario(told: Recorder) -> None:
    assert untaken(PHASES, told.phases) == []
    assert untaken(STANDINGS, told.standings) == []


def test_every_phase_and_every_standing_is_reached() -> None:
    assert {place for row in PHASES for place in row.after} == set(Phase)
    assert {place for row in STANDINGS for place in row.after} == set(Standing)


def test_nothing_follows_the_end() -> None:
    assert not [row for row in PHASES for place in row.before if place.ended]
    assert not [row for row in STANDINGS if Standing.GONE in row.before]


# --- these tests can fail


@pytest.mark.parametrize("rows", [PHASES, STANDINGS], ids=["phases", "standings"])
def test_a_row_that_is_left_out_is_missed(told: Recorder, rows: tuple[Row, ...]) -> None:
    found = told.phases if rows is PHASES else told.standings
    for row in rows:
        assert unknown([other for other in rows if other is not row], found), row.why


def test_a_row_that_no_run_takes_is_seen(told: Recorder) -> None:
    never = Row((Phase.SUCCEEDED,), (Phase.RUNNING,), "it was fun", (table.Started,))
    assert untaken([never], told.phases) == [
        "it was fun: from succeeded",
        "it was fun: to running",
        "it was fun: on Started",
    ]
    wider = Row(table.RECOVERING, table.RUNNING, "x", (table.Resumed, table.Finished, table.Raised))
    assert untaken([wider], told.phases) == ["x: on Raised"]


def test_two_rows_for_one_move_are_refused(told: Recorder) -> None:
    assert unknown([*PHASES, PHASES[0]], told.phases)


# --- the document


@pytest.mark.filterwarnings("ignore:.*found in sys.modules.*:RuntimeWarning")
def test_the_document_shows_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_module(table.__name__, run_name="__main__")
    printed = capsys.readouterr().out.strip()
    assert printed.count("```mermaid") == 2
    text = DOCUMENT.read_text()
    for part in (diagram(PHASES, "begun", table.BEGUN), markdown(PHASES), markdown(STANDINGS)):
        assert part in printed
        assert part in text
    assert diagram(STANDINGS, "healthy", table.HEALTHY) in text


def test_the_document_leads_to_every_scenario() -> None:
    text = DOCUMENT.read_text()
    assert [path.name for path in SCENARIOS if f"(../tests/orchestrator/scenarios/{path.name})" not in text] == []

"""Scenarios are read as documentation, so they must be what the machine does; ``--rewrite-scenarios`` makes them so."""

from difflib import unified_diff
from pathlib import Path

import pytest
from everstep.orchestrator.machine.events import Action, Event, KillRank
from everstep.orchestrator.machine.state import State

from .scenarios.commands import form_of, forms
from .scenarios.language import ScenarioError, read
from .scenarios.stage import advance

FILES = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


def difference(path: Path) -> str:
    """Between what a file says and what happens; empty if there is none."""
    written, played = path.read_text().splitlines(), read(path).played().splitlines()
    return "\n".join(unified_diff(written, played, f"{path.name} as written", "as it happens", lineterm=""))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_happens_as_it_is_written(path: Path, pytestconfig: pytest.Config) -> None:
    if pytestconfig.getoption("--rewrite-scenarios"):
        path.write_text(read(path).played())
    diff = difference(path)
    assert not diff, f"if this is meant to be so, --rewrite-scenarios writes it:\n{diff}"


def test_every_scenario_says_what_it_is_about() -> None:
    assert len(FILES) >= 16
    assert [path.name for path in FILES if not path.read_text().startswith("# ")] == []


def test_every_command_is_used_by_some_scenario() -> None:
    commands = [line.text for path in FILES for line in read(path).lines]
    used = {form_of(text) for text in commands if not text.startswith("world: ")}
    assert set(forms()) - used == set()


# --- the runner can fail

RIGHT = """\
# Two ranks.

world: 2 replicas
boot
  journal: rank up (2 times); opened
  -> start 0 as 0.0, 1 as 1.0
  -> open 1.1 at step 0 to 0 1: nobody has begun, everybody plans its share
  state: running: training
rank 1 dies
  journal: rank gone; recovering
  -> kill 1: its process ended with signal 9
  -> prepare 1.2 to 0
  state: recovering: rank 1.0: its process ended with signal 9; waiting for reports of ranks 0.0

# That is all.
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "scenario.txt"
    path.write_text(text)
    return path


def test_what_is_right_does_not_differ(tmp_path: Path) -> None:
    assert difference(written(tmp_path, RIGHT)) == ""


@pytest.mark.parametrize(
    ("said", "instead", "shown"),
    [
        ("prepare 1.2 to 0", "prepare 1.2 to 0 1", ["-  -> prepare 1.2 to 0 1", "+  -> prepare 1.2 to 0"]),
        ("  -> kill 1: its process ended with signal 9\n", "", ["+  -> kill 1: its process ended with signal 9"]),
        ("state: running", "state: starting", ["-  state: starting: training", "+  state: running: training"]),
        ("# That", "  -> kill 0\n# That", ["-  -> kill 0"]),
    ],
)
def test_what_is_wrong_is_shown(tmp_path: Path, said: str, instead: str, shown: list[str]) -> None:
    path = written(tmp_path, RIGHT.replace(said, instead))
    lines = difference(path).splitlines()
    assert [line for line in lines[2:] if line[0] in "+-"] == shown
    path.write_text(read(path).played())
    assert path.read_text() == RIGHT


def test_another_machine_gives_another_transcript(tmp_path: Path) -> None:
    def merciful(state: State, event: Event, now: float) -> tuple[State, list[Action]]:
        state, actions = advance(state, event, now)
        return state, [action for action in actions if not isinstance(action, KillRank)]

    path = written(tmp_path, RIGHT)
    assert read(path).played(merciful) == RIGHT.replace("  -> kill 1: its process ended with signal 9\n", "")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("world: 2 replicas\nboot\nrank 1 explodes", r"scenario.txt:3: unknown command 'rank 1 explodes'; known are:"),
        ("world: 2 replicas\nboot\nrank 2 dies", r"scenario.txt:3: there is no rank 2, only 0 to 1"),
        ("world: 2 replicas\nboot\n\nranks 0 7 die", r"scenario.txt:4: there is no rank 7, only 0 to 1"),
        ("world: 2 replicas, 3 goats\nboot", r"scenario.txt:1: unknown about a world: '3 goats'; known are: "),
        ("world: 1 spare", r"scenario.txt:1: a world has replicas"),
        ("world: 2 replicas, recovery magic", r"scenario.txt:1: unknown recovery policy 'magic'"),
        ("# First.\nboot", r"scenario.txt:2: a scenario begins with 'world: ...', not with 'boot'"),
        ("world: 2 replicas\nstart\nrank 0 decides step 0", r"scenario.txt:3: there is no generation yet"),
        ("world: 2 replicas\nrank 0 dies", r"scenario.txt:2: there is no rank 0, nobody has been asked for yet"),
        (
            "world: 2 replicas\nboot\nrank 0 reports step 0: owns 3",
            r"scenario.txt:3: unknown in a report: 'owns 3'; known are: done N",
        ),
    ],
)
def test_what_cannot_be_played_is_named_with_its_place(tmp_path: Path, text: str, error: str) -> None:
    with pytest.raises(ScenarioError) as raised:
        read(written(tmp_path, text)).played()
    assert error in str(raised.value)


def test_an_unknown_command_is_told_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError) as raised:
        read(written(tmp_path, "world: 2 replicas\nfoo")).played()
    lines = str(raised.value).splitlines()[1:]
    assert "  rank N dies[: WHY]" in lines
    assert "  resize to REPLICAS" in lines
    assert not [line for line in lines if set(line) & set("()?\\|+")]

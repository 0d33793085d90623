"""What healthy runs have written becomes the envelope of runs to come."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from everstep.actors.messages import StepRecord
from everstep.monitors.calibration import load
from everstep.monitors.reading import Reading
from everstep.orchestrator.cli import main
from everstep.orchestrator.records.json_lines import FILE, JsonLines


def ran(folder: Path, seed: int, looks: int = 9) -> str:
    """A run that has left its records."""
    records = []
    for step in range(10 * looks or 3):
        entropies = {"delta2.entropy": 3 + 0.01 * ((step + seed) % 7), "delta3.entropy": 1.0}
        told = tuple(Reading("attention", step - 1, "a", head, entropies) for head in (0, 1)) if step % 10 == 5 else ()
        records.append(StepRecord(step, 1.0, 1.0, 0.5, {}, {}, None, 8, 1, 0.0, readings=told))
    folder.mkdir()
    sink = JsonLines(folder / FILE)
    sink.write(records)
    sink.close({})
    return str(folder)


def test_an_envelope_of_runs(tmp_path: Path) -> None:
    runs = [ran(tmp_path / f"run-{seed}", seed) for seed in range(2)]
    target = tmp_path / "envelope.json"
    ended = CliRunner().invoke(main, ["calibrate", *runs, "--to", str(target), "--distance", "8", "--bin", "50"])
    assert ended.exit_code == 0, ended.output
    assert ended.output.strip() == f"{target}: 2 bands of 2 runs, 8 scales wide"
    held = load(target)
    assert held.envelope is not None
    assert set(held.envelope) == {(("attention", "a", "delta2.entropy"), place) for place in (0, 1)}
    assert (held.rule.distance, held.rule.bin) == (8.0, 50)
    assert all(band.low < 3 < 3.06 < band.high for band in held.envelope.values())


@pytest.mark.parametrize(
    ("looks", "options", "said"),
    [
        (0, [], "holds no readings of stability monitors"),
        (1, [], "no 500 steps of 1 runs hold 8 readings of one layer"),
        (9, ["--distance", "-1"], "distance, persistence, bin must be above 0"),
        (9, ["--to", "/nowhere/envelope.json"], "/nowhere/envelope.json cannot be written: No such file"),
    ],
)
def test_what_makes_none(looks: int, options: list[str], said: str, tmp_path: Path) -> None:
    target = ["--to", str(tmp_path / "envelope.json")]
    ended = CliRunner().invoke(main, ["calibrate", ran(tmp_path / "run", 0, looks), *target, *options])
    assert ended.exit_code == 2, ended.output
    assert said in ended.output
    assert not (tmp_path / "envelope.json").exists()

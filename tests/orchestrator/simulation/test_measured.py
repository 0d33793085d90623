"""Costs out of the folder of a run."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from everstep.actors.messages import StepRecord
from everstep.conf.errors import ConfigError
from everstep.orchestrator.simulation.measured import measured_costs


def run_of(folder: Path, worlds: list[int], journal: str = "") -> Path:
    """Steps of 16 microbatches of 0.5 s, a quarter of a second beside them; the first one took longer."""
    lines = []
    for step, world in enumerate(worlds):
        seconds = -(-16 // world) * 0.5 + 0.25 + (9.0 if step == 0 else 0.0)
        record = StepRecord(step, 1.0, 1.0, seconds, {}, {}, None, 16, world, 0.0)
        lines.append(json.dumps(asdict(record)))
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "journal.jsonl").write_text(journal)
    return folder


def test_worlds_of_different_sizes_tell_microbatches_from_the_rest(tmp_path: Path) -> None:
    costs = measured_costs(run_of(tmp_path, [4] * 5 + [2] * 4 + [1] * 3))
    assert costs == {"microbatch": pytest.approx(0.5), "step": pytest.approx(0.25)}


def test_in_one_world_all_is_taken_for_microbatches(tmp_path: Path) -> None:
    assert measured_costs(run_of(tmp_path, [4] * 5)) == {"microbatch": pytest.approx(2.25 / 4)}


def test_recoveries_tell_how_long_notice_and_rebuilding_take(tmp_path: Path) -> None:
    entries = [
        {"what": "recovered", "phases": {"notice and report": seconds, "rebuild": 2 * seconds}} for seconds in (1, 2, 9)
    ]
    journal = "\n".join(['{"version": 1}', *map(json.dumps, entries), '{"what": "recov'])
    costs = measured_costs(run_of(tmp_path, [4] * 3, journal))
    assert (costs["detect"], costs["rebuild"]) == (2, 4)


@pytest.mark.parametrize(("worlds", "problem"), [([], "too short to measure"), ([4], "too short to measure")])
def test_a_run_that_is_too_short(tmp_path: Path, worlds: list[int], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        measured_costs(run_of(tmp_path, worlds))


def test_a_folder_without_a_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"it holds no metrics\.jsonl; name the folder of a run"):
        measured_costs(tmp_path)

"""``everstep simulate`` from the outside."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from everstep.orchestrator.cli import main

FILE = """
fleet: {replicas: 4}
batch: {microbatches: 16}
costs: {microbatch: 1.0, step: 0.5}
policies: {recovery: shrink}
failures: {on_steps: {first: 2.5, count: 1}}
steps: 10
"""


def simulate(folder: Path, *arguments: str, text: str = FILE) -> Result:
    (folder / "file.yaml").write_text(text)
    return CliRunner().invoke(main, ["simulate", str(folder / "file.yaml"), *arguments])


def test_it_shows_where_the_time_went_and_writes_it_down(tmp_path: Path) -> None:
    result = simulate(tmp_path, "steps=12", "--json", str(tmp_path / "out.json"))
    assert result.exit_code == 0, result.output
    for shown in ("goodput", "1 shrink", "smaller world", "recovery", "tokens per alive GPU-hour"):
        assert shown in result.output
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["steps"] == 12
    assert document["remedies"] == {"shrink": 1}
    assert document["goodput"] == pytest.approx(12 * 4.5 / document["elapsed"])


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("policies.recovery=hope", "policies.recovery: unknown recovery policy 'hope'; use one of: auto, swap"),
        ("policies.workload=lazy", "policies.workload: unknown workload policy 'lazy'; use one of: balanced"),
        ("costs.rebuild=-1", "costs.rebuild=-1.0 must be"),
        ("costs_from=nowhere", "it holds no metrics.jsonl; name the folder of a run"),
        ("failures.trace=nothing.csv", "nothing.csv: cannot be read"),
    ],
)
def test_what_cannot_work_ends_with_one_line(tmp_path: Path, override: str, problem: str) -> None:
    result = simulate(tmp_path, override)
    assert result.exit_code == 2
    assert problem in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_the_folder_of_the_json_file_must_be_there(tmp_path: Path) -> None:
    result = simulate(tmp_path, "--json", str(tmp_path / "nowhere" / "out.json"))
    assert result.exit_code == 2
    assert "its folder does not exist" in result.stderr

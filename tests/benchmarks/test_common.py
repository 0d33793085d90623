"""The figures' arithmetic, and the shape of what programs read."""

import json
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
from everstep.benchmarks.common import Row, bootstrap, document, median_row, parser, percentile, publish


def test_interval_of_equal_values_is_their_value() -> None:
    assert bootstrap([0.97] * 15, seed=0) == (0.97, 0.97)


def test_interval_holds_the_median_and_repeats_with_its_seed() -> None:
    values = [0.9, 0.95, 0.96, 0.97, 0.98, 0.99, 1.2]
    low, high = bootstrap(values, seed=3)
    assert min(values) <= low <= 0.97 <= high <= max(values)
    assert bootstrap(values, seed=3) == (low, high)


def test_interval_shrinks_with_more_measurements() -> None:
    rng = np.random.default_rng(0)
    few, many = rng.normal(1, 0.1, 10), rng.normal(1, 0.1, 1000)
    widths = [high - low for low, high in (bootstrap(list(few), 0), bootstrap(list(many), 0))]
    assert widths[1] < widths[0] / 3


def test_interval_covers_the_true_median_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    hits = 0
    for turn in range(100):
        low, high = bootstrap(list(rng.normal(5, 1, 25)), seed=turn)
        hits += low <= 5 <= high
    assert 85 <= hits <= 100


def test_median_row_carries_its_interval() -> None:
    row = median_row("ratio", [1.0, 2.0, 9.0], "ratio", seed=0)
    assert row.value == 2.0
    assert row.interval is not None


def test_percentile_interpolates() -> None:
    assert percentile(list(range(101)), 95) == pytest.approx(95)
    assert percentile([1.0, 2.0], 50) == 1.5
    assert percentile([7.0], 95) == 7.0


def test_document_has_exactly_rows_versions_and_seed() -> None:
    content = document([Row("a", 1.0, "ms"), Row("b", 0.5, "ratio", (0.4, 0.6))], seed=7, cuda=None)
    assert set(content) == {"rows", "versions", "seed"}
    assert content["seed"] == 7
    assert content["rows"] == [
        {"name": "a", "value": 1.0, "unit": "ms"},
        {"name": "b", "value": 0.5, "unit": "ratio"},
        {"name": "b_low", "value": 0.4, "unit": "ratio"},
        {"name": "b_high", "value": 0.6, "unit": "ratio"},
    ]
    versions = content["versions"]
    assert isinstance(versions, dict)
    assert {"python", "torch", "ray", "everstep", "cuda"} <= set(versions)


def test_publish_shows_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "figures.json"
    options = parser("a benchmark").parse_args(["--seed", "3", "--json", str(file)])
    publish("title", [Row("steps_per_s", 5.25, "1/s")], options)
    assert "steps_per_s" in capsys.readouterr().out
    assert json.loads(file.read_text())["rows"] == [{"name": "steps_per_s", "value": 5.25, "unit": "1/s"}]


def test_publish_writes_nothing_unasked(tmp_path: Path) -> None:
    publish("title", [Row("a", 1.0, "ms")], Namespace(json=None, seed=0))
    assert list(tmp_path.iterdir()) == []

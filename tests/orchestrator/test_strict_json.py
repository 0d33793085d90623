"""JSON for every reader: no NaN, no Infinity."""

import json
import math
from pathlib import Path

import pytest
from everstep.orchestrator import strict_json


def strict(text: str) -> object:
    def refuse(name: str) -> None:
        pytest.fail(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_what_is_not_finite_is_a_string_that_reads_back() -> None:
    said = {"a": [math.nan, (math.inf, 1.5)], "b": {"c": -math.inf}, "d": None, "e": True, "f": 3}
    read = strict(strict_json.dumps(said))
    assert read == {"a": ["NaN", ["Infinity", 1.5]], "b": {"c": "-Infinity"}, "d": None, "e": True, "f": 3}
    assert math.isnan(float("NaN"))
    assert float("-Infinity") == -math.inf


def test_finite_numbers_keep_every_bit_and_the_rest_is_text() -> None:
    assert strict(strict_json.dumps({"x": 0.1 + 0.2, "p": Path("a/b")}, indent=2)) == {"x": 0.1 + 0.2, "p": "a/b"}

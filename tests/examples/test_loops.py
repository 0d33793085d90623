"""The plain script and the elastic one: ten lines apart, the same steps, and the same bits through kills."""

import difflib
from pathlib import Path

import pytest
import torch
from everstep.benchmarks.loop import lines_added
from everstep.examples import elastic_loop, plain_loop
from everstep.examples.docstrings import Documents, docstrings

from .local import EXAMPLES, ROOT, both, read

SCRIPTS = ("plain_loop.py", "elastic_loop.py")
SMALL = {"steps": 5, "held_out": 24, "model": {"layers": 1, "width": 32, "heads": 2, "block": 48, "dropout": 0.0}}


def scripts() -> list[str]:
    return [(EXAMPLES / name).read_text() for name in SCRIPTS]


def difference() -> list[str]:
    """As ``diff -u`` shows it."""
    plain, elastic = (script.splitlines() for script in scripts())
    return list(difflib.unified_diff(plain, elastic, *SCRIPTS, lineterm=""))


def test_at_most_ten_lines_are_added() -> None:
    plain, elastic = scripts()
    assert 0 < lines_added(plain, elastic) <= 10


def fenced(language: str) -> list[str]:
    """The blocks in this language of the page about it."""
    page = (ROOT / "docs" / "your_own_script.md").read_text()
    return [part.split("```")[0].strip("\n") for part in page.split(f"```{language}\n")[1:]]


def test_the_page_shows_this_very_difference() -> None:
    assert fenced("diff") == ["\n".join(difference())]


def test_the_page_shows_this_very_run_file() -> None:
    assert fenced("yaml") == [(EXAMPLES / "elastic_loop.yaml").read_text().strip("\n")]


def test_both_are_configured_alike() -> None:
    run = read("elastic_loop.yaml", [])
    assert {**run.config, "microbatches": run.elastic.microbatches_per_step} == plain_loop.CONFIG


def test_the_data_last_for_all_steps() -> None:
    """At the end of an epoch the two would go apart."""
    config = plain_loop.CONFIG
    needed = config["steps"] * config["microbatches"] * config["documents"]
    assert needed <= len(Documents(docstrings(), longest=2)) - config["held_out"]


def test_both_take_the_same_steps_and_kills_change_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain_loop.train({**plain_loop.CONFIG, **SMALL, "output": str(tmp_path / "plain.pt")})
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == SMALL["steps"]

    model = ", ".join(f"{name}: {value}" for name, value in SMALL["model"].items())
    run = read(
        "elastic_loop.yaml",
        [
            f"config.steps={SMALL['steps']}",
            f"config.held_out={SMALL['held_out']}",
            f"config.model={{{model}}}",
            f"config.output={tmp_path / 'disturbed.pt'}",
            "scaling.ranks=[1, 3]",
            "elastic.chaos[0].step=1",
            "elastic.chaos[1].step=3",
            "elastic.chaos[1].replica=2",
        ],
    )
    disturbed, undisturbed = both(run, elastic_loop.train, output=str(tmp_path / "undisturbed.pt"))
    assert disturbed["weights_sha256"] == undisturbed["weights_sha256"]
    assert float(shown[-1].split()[-1]) == pytest.approx(undisturbed["loss"], abs=1e-3)

    left = {name: torch.load(tmp_path / f"{name}.pt") for name in ("plain", "disturbed", "undisturbed")}
    assert left["disturbed"]["scores"] == left["undisturbed"]["scores"]
    assert left["plain"]["scores"] == pytest.approx(left["undisturbed"]["scores"], rel=1e-5)
    for name, weight in left["plain"]["model"].items():
        assert torch.equal(left["disturbed"]["model"][name], left["undisturbed"]["model"][name])
        # Sums of float32 in another order, and AdamW, which makes much of a gradient that is nearly zero.
        assert torch.allclose(weight, left["undisturbed"]["model"][name], atol=1e-3), name

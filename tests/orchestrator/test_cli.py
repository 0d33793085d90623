"""The command line over a trainer that behaves but trains nothing."""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result
from everstep.conf.errors import ConfigError, EverstepError, RunNotFoundError, TrainingFailedError
from everstep.conf.run import RunFile
from everstep.orchestrator.cli import main
from everstep.orchestrator.view import Phase, RecoveryRecord, RunState

FILE = """
name: gpt
train: model.py:train
config: {steps: 2}
scaling: {ranks: [1, 4]}
elastic: {microbatches_per_step: 8}
weight_unit: tokens
"""
CHAOS = "elastic.chaos=[{step: 1, replica: 1}]"
RECOVERY = RecoveryRecord("1.2", "rank 1.0 died", 1, 4, 3, ("1.0",), (2,), {"rebuild": 0.02, "total": 0.02})


class FakeTrainer:
    """Fires every planned fault, recovers from it, and ends with weights that depend on the seed alone."""

    started: list[RunFile]
    weights: Callable[[RunFile], str]
    fires = True
    error: EverstepError | None = None

    def __init__(self, run_file: RunFile, train: Callable[[Any], object]) -> None:
        assert callable(train)
        self.run_file = run_file

    @classmethod
    def from_run_file(cls, run_file: RunFile, train: Callable[[Any], object]) -> "FakeTrainer":
        cls.started.append(run_file)
        return cls(run_file, train)

    def fit(self, on_state: Callable[[RunState], None] | None = None) -> SimpleNamespace:
        assert on_state is not None
        on_state(RunState(self.run_file.name, Phase.STARTING, "waiting for ranks", steps=2))
        if self.error is not None:
            raise self.error
        unit = self.run_file.weight_unit
        throughput = {"weight_unit": unit, "weight_per_s": 5100.0}
        on_state(RunState(self.run_file.name, Phase.RUNNING, "", "1.1", 2, 2, 4, loss=3.5, **throughput))  # type: ignore[arg-type]
        fired = self.run_file.elastic.chaos if self.fires else ()
        metrics = {
            "weights_sha256": type(self).weights(self.run_file),
            "loss": 3.5,
            "steps": 2,
            "microbatches_computed": 16,
            "recoveries": [asdict(RECOVERY) for _ in fired],
            "faults_fired": [f"sigkill of rank {fault.replica}.0" for fault in fired],
        }
        return SimpleNamespace(metrics=metrics)


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> type[FakeTrainer]:
    class Trainer(FakeTrainer):
        weights = staticmethod(lambda run_file: f"{run_file.elastic.seed:064x}")

    Trainer.started = []
    module = ModuleType("everstep.orchestrator.trainer")
    module.ElasticTrainer = Trainer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return Trainer


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "model", raising=False)
    (tmp_path / "model.py").write_text("def train(ctx): pass\n")
    path = tmp_path / "run.yaml"
    path.write_text(FILE)
    return path


def everstep(*arguments: object, stdin: str | None = None) -> Result:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], input=stdin)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result


def test_a_run_shows_its_progress_and_its_end(file: Path, trainer: type[FakeTrainer]) -> None:
    result = everstep("run", file, "elastic.seed=5", "config.steps=3")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "step 0/2  world 0  starting: waiting for ranks",
        "step 2/2  loss 3.5  5.1k tokens/s  world 4  generation 1.1  running",
        "finished  2 steps  loss 3.5  16 microbatches computed",
        "weights  " + "5".rjust(64, "0"),
    ]
    assert [(run.elastic.seed, run.config) for run in trainer.started] == [(5, {"steps": 3})]


def test_a_file_may_come_from_the_standard_input(
    file: Path, trainer: type[FakeTrainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(file.parent)
    assert everstep("run", "-", stdin=FILE).exit_code == 0
    assert everstep("run", "-", stdin="name: [").stderr.startswith("error: <stdin>: bad YAML: ")


def test_a_recovery_is_shown_by_phases(file: Path, trainer: type[FakeTrainer]) -> None:
    result = everstep("run", file, CHAOS)
    assert result.exit_code == 0
    for part in ("recovered  once", "fault fired  sigkill of rank 1.0", "rebuild total", "1.2  rank 1.0 died"):
        assert part in result.stdout


def test_comparing_runs_the_undisturbed_twin(file: Path, trainer: type[FakeTrainer], tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.json"
    result = everstep("run", file, CHAOS, "compare=true", "--json", metrics)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == "identical: yes"
    assert "undisturbed  step 2/2" in result.stdout
    disturbed, twin = trainer.started
    assert (disturbed.name, len(disturbed.elastic.chaos)) == ("gpt", 1)
    assert (twin.name, len(twin.elastic.chaos)) == ("gpt-undisturbed", 0)
    told = json.loads(metrics.read_text())
    assert told["identical"] is True
    assert told["weights_sha256"] == told["undisturbed"]["weights_sha256"]
    assert RecoveryRecord(**told["recoveries"][0]).cause == RECOVERY.cause


def test_other_weights_are_an_exit_code(file: Path, trainer: type[FakeTrainer], tmp_path: Path) -> None:
    trainer.weights = staticmethod(lambda run_file: run_file.name)  # type: ignore[assignment]
    result = everstep("run", file, "compare=true", "--json", tmp_path / "metrics.json")
    assert result.exit_code == 3
    assert result.stdout.splitlines()[-2:] == ["undisturbed  weights  gpt-undisturbed", "identical: NO"]
    assert json.loads((tmp_path / "metrics.json").read_text())["identical"] is False


def test_a_fault_that_never_fired_is_an_exit_code(file: Path, trainer: type[FakeTrainer]) -> None:
    trainer.fires = False
    result = everstep("run", file, CHAOS)
    assert result.exit_code == 4
    assert "only 0 of 1 planned faults fired" in result.stdout


def test_a_failed_run_shows_the_users_traceback_first(file: Path, trainer: type[FakeTrainer]) -> None:
    traceback = "Traceback:\n  train(ctx)\nValueError: bad shape\n"
    trainer.error = TrainingFailedError("rank 0.0 raised\nValueError: bad shape", traceback)
    result = everstep("run", file)
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        "Traceback:",
        "  train(ctx)",
        "ValueError: bad shape",
        "error: rank 0.0 raised ValueError: bad shape",
    ]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["elastic.sed=3"], "elastic.sed is not known; did you mean seed?"),
        (["train=model.py:tarin"], "model.py has no 'tarin'"),
        (["train=nowhere.py:train"], "there is no file"),
        (["--json", "/nowhere/metrics.json"], "its folder does not exist"),
    ],
)
def test_a_bad_configuration_is_one_line(
    file: Path, trainer: type[FakeTrainer], arguments: list[str], text: str
) -> None:
    result = everstep("run", file, *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert text in line
    assert not trainer.started


def test_a_module_that_cannot_be_imported_shows_its_traceback(file: Path, trainer: type[FakeTrainer]) -> None:
    (file.parent / "broken.py").write_text("import math\nmath.nothing\n")
    result = everstep("run", file, "train=broken.py:train")
    assert result.exit_code == 2
    lines = result.stderr.splitlines()
    assert lines[0].startswith("Traceback")
    assert any("math.nothing" in line for line in lines)
    assert "cannot be imported: AttributeError" in lines[-1]


def test_the_state_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(name: str, address: str | None = None) -> SimpleNamespace:
        if name != "gpt":
            raise RunNotFoundError(f"no run {name!r} at {address}")
        return SimpleNamespace(state=lambda: RunState("gpt", Phase.RECOVERING, "asking", "1.2", first_cause="died"))

    module = ModuleType("everstep.orchestrator.connect")
    module.connect = connect  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    result = everstep("state", "gpt")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "gpt: step 0  world 0  generation 1.2  recovering: asking",
        "first cause  died",
    ]
    result = everstep("state", "bert", "--address", "here")
    assert result.exit_code == 1
    assert result.stderr == "error: no run 'bert' at here\n"


def test_a_run_is_scaled_and_a_node_is_drained(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def connect(name: str, address: str | None = None) -> SimpleNamespace:
        def scale(replicas: int) -> None:
            if replicas < 2:
                raise ConfigError(f"{name} needs 2")
            asked.append((name, address, replicas))

        return SimpleNamespace(scale=scale, drain=lambda node: asked.append((name, address, node)))

    module = ModuleType("everstep.orchestrator.connect")
    module.connect = connect  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert everstep("scale", "gpt", "6").exit_code == 0
    assert everstep("drain", "gpt", "4f2a", "--address", "here").exit_code == 0
    assert asked == [("gpt", None, 6), ("gpt", "here", "4f2a")]
    result = everstep("scale", "gpt", "1")
    assert (result.exit_code, result.stderr) == (2, "error: gpt needs 2\n")


def test_help_and_version() -> None:
    for arguments in (["--help"], ["run", "--help"], ["--version"]):
        assert everstep(*arguments).exit_code == 0

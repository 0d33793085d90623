"""Runs as Ray jobs, over a client that only notes what it was asked."""

import shlex
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import everstep
import pytest
import ray.exceptions
import ray.job_submission
from click.testing import CliRunner
from everstep.conf.errors import ConfigError, EverstepError, TrainingFailedError
from everstep.conf.run import load, parse
from everstep.orchestrator import jobs
from everstep.orchestrator.cli import main

FILE = 'name: gpt\ntrain: model.py:train\nelastic: {microbatches_per_step: 8}\nconfig: {text: "it\'s $HOME"}\n'
ADDRESS = "http://cluster:8265"


class Client:
    """A Ray job client without a cluster."""

    asked: dict[str, Any]
    refusal: Exception | None = None
    status = "SUCCEEDED"
    code = 3
    lost: Exception | None = None

    def __init__(self, address: str) -> None:
        if self.refusal is not None:
            raise self.refusal
        assert address == ADDRESS

    def submit_job(self, **asked: Any) -> str:
        Client.asked = asked
        if "too_big" in asked["runtime_env"]["working_dir"]:
            raise RuntimeError("Package size (600MiB)\nexceeds 500MiB")
        return str(asked["submission_id"])

    async def tail_job_logs(self, job: str) -> AsyncIterator[str]:
        yield f"{job} step 1\n"
        if self.lost is not None:
            raise self.lost

    def get_job_info(self, job: str) -> SimpleNamespace:
        message = f"exit code {self.code}\nbye, last available logs: x"
        return SimpleNamespace(status=self.status, message=message, driver_exit_code=self.code)


@pytest.fixture(autouse=True)
def client(monkeypatch: pytest.MonkeyPatch) -> type[Client]:
    class Mine(Client):
        pass

    monkeypatch.setattr(ray.job_submission, "JobSubmissionClient", Mine)
    return Mine


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "my run.yaml"
    path.write_text(FILE)
    return path


def test_a_file_goes_with_its_folder(file: Path) -> None:
    job = everstep.submit(file, address=ADDRESS, overrides=["elastic.seed=3"])
    assert job.startswith("gpt-")
    assert shlex.split(Client.asked["entrypoint"]) == ["everstep", "run", "my run.yaml", "elastic.seed=3"]
    assert Client.asked["runtime_env"] == {"working_dir": str(file.parent)}
    assert Client.asked["metadata"] == {"everstep_run": "gpt"}


def test_a_value_goes_through_the_standard_input(file: Path) -> None:
    run = load(file)
    jobs.submit(run, address=ADDRESS)
    printf, form, text, *rest = shlex.split(Client.asked["entrypoint"])
    assert [printf, form, *rest] == ["printf", "%s", "|", "everstep", "run", "-"]
    assert parse(text) == run
    assert Client.asked["runtime_env"] == {"working_dir": str(file.parent)}
    with pytest.raises(ConfigError, match=r"dataclasses\.replace"):
        jobs.submit(run, address=ADDRESS, overrides=["elastic.seed=3"])


def test_a_bad_file_is_refused_before_anything_is_sent(file: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean seed"):
        jobs.submit(file, address=ADDRESS, overrides=["elastic.sed=3"])


@pytest.mark.parametrize(
    ("refusal", "text"),
    [
        (ray.exceptions.AuthenticationError("401\n\nno token"), "RAY_AUTH_MODE must be the same on both sides"),
        (ConnectionError("Failed to connect."), f"no Ray dashboard answers at {ADDRESS}: Failed to connect; give"),
        (ValueError("Internal error:\nauto"), "give the address of a cluster's dashboard"),
    ],
)
def test_a_cluster_that_refuses_is_one_line(file: Path, client: type[Client], refusal: Exception, text: str) -> None:
    client.refusal = refusal
    result = CliRunner().invoke(main, ["submit", str(file), "--address", ADDRESS])
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert text in line


def test_a_folder_that_is_not_taken_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "too_big").mkdir()
    (tmp_path / "too_big" / "run.yaml").write_text(FILE)
    with pytest.raises(ConfigError, match="did not take the job: Package size"):
        jobs.submit(tmp_path / "too_big" / "run.yaml", address=ADDRESS)


def test_waiting_shows_the_output_and_ends_with_the_job(file: Path, client: type[Client]) -> None:
    arguments = ["submit", str(file), "--wait", "--address", ADDRESS]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0
    first, second = result.stdout.splitlines()
    assert first.startswith("submitted  gpt-")
    assert second.endswith(" step 1")
    client.status = "FAILED"
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 1
    assert result.stderr.endswith("ended as FAILED: exit code 3 bye\n")
    client.code = 127
    assert "ended as FAILED: the cluster has no command everstep" in CliRunner().invoke(main, arguments).stderr


def test_a_lost_connection_is_not_a_failed_job(client: type[Client]) -> None:
    client.lost = RuntimeError("WebSocket closed")
    with pytest.raises(EverstepError, match="lost sight of job x, which may go on") as caught:
        jobs.wait("x", address=ADDRESS)
    assert not isinstance(caught.value, TrainingFailedError)

"""Runs as jobs of a Ray cluster: the driver itself lives there, and outlives the machine that submitted it."""

import asyncio
import shlex
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..conf.errors import ConfigError, EverstepError, TrainingFailedError
from ..conf.run import RunFile, dump, load
from .report import one_line

_AUTH = (
    "the cluster at {address} wants a token that this client does not send: RAY_AUTH_MODE must be the same on both "
    "sides; set it to token here, with the cluster's token in RAY_AUTH_TOKEN or ~/.ray/auth_token, or to disabled "
    "where the cluster starts"
)

_NO_COMMAND = 127  # what a shell returns for a command that it does not find


def submit(config: RunFile | str | Path, *, address: str, overrides: Sequence[str] = ()) -> str:
    """Start a run as a Ray job. The folder of its file goes along; everstep must be installed there, with its command.

    Args:
        config: a YAML file, or what was read from one.
        address: of the cluster's dashboard, as in ``http://127.0.0.1:8265``.
        overrides: ``key=value`` each, for a file.

    Returns:
        The submission id of the job.

    Raises:
        ConfigError: a bad file, or a cluster that cannot be reached or refuses; nothing was started.
    """
    run = config if isinstance(config, RunFile) else load(config, overrides)
    if isinstance(config, RunFile):
        if overrides:
            raise ConfigError("overrides are for a file; change the RunFile with dataclasses.replace")
        command = f"printf %s {shlex.quote(dump(run))} | everstep run -"
    else:
        command = shlex.join(["everstep", "run", Path(config).name, *overrides])
    try:
        job: str = _client(address).submit_job(
            entrypoint=command,
            submission_id=f"{run.name}-{uuid.uuid4().hex[:8]}",
            runtime_env={"working_dir": str(Path(run.folder).resolve())},
            metadata={"everstep_run": run.name},
        )
    except (RuntimeError, ValueError, OSError) as error:
        raise ConfigError(f"the cluster at {address} did not take the job: {one_line(str(error))}") from None
    return job


def wait(job: str, *, address: str, echo: Callable[[str], object] | None = None) -> None:
    """Wait until a job has ended, for as long as it runs.

    Args:
        job: its submission id.
        address: of the cluster's dashboard.
        echo: called with its output, in pieces, as it comes.

    Raises:
        ConfigError: the cluster cannot be reached or refuses.
        TrainingFailedError: the job failed or was stopped.
        EverstepError: the connection was lost; the job may go on.
    """
    client = _client(address)
    try:
        # Both end with the job: the cluster closes the stream then.
        asyncio.run(_tail(client, job, echo or (lambda text: None)))
        details = client.get_job_info(job)
    except (RuntimeError, OSError) as error:
        raise EverstepError(f"lost sight of job {job}, which may go on: {one_line(str(error))}") from None
    status = str(getattr(details.status, "value", details.status))
    if status == "SUCCEEDED":
        return
    # What Ray appends are the logs again.
    reason = (details.message or "no reason given").partition(", last available logs")[0]
    if details.driver_exit_code == _NO_COMMAND:
        reason = "the cluster has no command everstep; install it there and put it on the PATH of its Ray processes"
    raise TrainingFailedError(f"job {job} ended as {status}: {one_line(reason)}")


async def _tail(client: Any, job: str, echo: Callable[[str], object]) -> None:
    async for text in client.tail_job_logs(job):
        echo(text)


def _client(address: str) -> Any:
    from ray.exceptions import AuthenticationError
    from ray.job_submission import JobSubmissionClient

    try:
        return JobSubmissionClient(address)
    except AuthenticationError:
        raise ConfigError(_AUTH.format(address=address)) from None
    except Exception as error:  # Ray raises whatever its HTTP stack did
        raise ConfigError(
            f"no Ray dashboard answers at {address}: {one_line(str(error)).rstrip('.')}; give the address "
            "of a cluster's dashboard, as in http://127.0.0.1:8265"
        ) from None

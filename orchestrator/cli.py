"""The command line. Exit codes: 0 done, 1 the run failed, 2 a bad configuration, 3 other weights, 4 a missed fault."""

import dataclasses
import sys
import traceback
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from ..conf.errors import ConfigError, EverstepError, TrainingFailedError
from ..conf.run import RunFile, load, parse
from . import report, strict_json
from .progress import Progress


class ExitCode(IntEnum):
    """How a command ended."""

    OK = 0
    FAILED = 1
    BAD_CONFIG = 2
    OTHER_WEIGHTS = 3
    MISSED_FAULT = 4


class _Commands(click.Group):
    """Ends a command that raises one of our errors with one clear last line, after the user's traceback if any."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except EverstepError as error:
            user_code = _users_traceback(error)
            if user_code:
                click.echo(user_code.rstrip(), err=True)
            click.echo(f"error: {report.one_line(str(error))}", err=True)
            ctx.exit(ExitCode.BAD_CONFIG if isinstance(error, ConfigError) else ExitCode.FAILED)


@click.group(cls=_Commands)
@click.version_option(package_name="everstep")
def main() -> None:
    """Elastic LLM pre-training on Ray: every optimizer step happens, bit for bit, whatever fails."""


@main.command()
@click.argument("file", type=click.Path(allow_dash=True))
@click.argument("overrides", metavar="[KEY=VALUE]...", nargs=-1)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the final metrics to this file.")
def run(file: str, overrides: tuple[str, ...], json_file: Path | None) -> None:
    """Run FILE to its end ('-' reads it from the standard input) and show its progress and its recoveries.

    A KEY=VALUE changes one setting, as in elastic.seed=3 or config.steps=10.
    """
    from .load import load_function

    if json_file is not None and not json_file.resolve().parent.is_dir():
        raise ConfigError(f"--json {json_file}: its folder does not exist; make it first")
    run_file = parse(sys.stdin.read(), source="<stdin>", overrides=overrides) if file == "-" else load(file, overrides)
    train = load_function(run_file.train, run_file.folder)
    console = _console()

    metrics = _fit(run_file, train, console)
    for line in report.summary_lines(metrics):
        console.print(line)
    recoveries = report.recoveries_of(metrics)
    if recoveries:
        console.print(report.recovery_report(recoveries))
    console.print(report.weights_line(metrics))
    ending = ExitCode.OK

    missed = report.missed_faults_line(len(run_file.elastic.chaos), metrics)
    if missed:
        console.print(missed)
        ending = ExitCode.MISSED_FAULT
    if run_file.compare:
        undisturbed = _fit(undisturbed_twin(run_file), train, console, label="undisturbed")
        console.print(f"undisturbed  {report.weights_line(undisturbed)}")
        console.print(report.comparison_line(metrics, undisturbed))
        same = report.identical(metrics, undisturbed)
        metrics = {**metrics, "identical": same, "undisturbed": undisturbed}
        ending = ending if same else ExitCode.OTHER_WEIGHTS

    if json_file is not None:
        json_file.write_text(strict_json.dumps(metrics, indent=2) + "\n", encoding="utf-8")
    click.get_current_context().exit(ending)


@main.command()
@click.argument("run_name", metavar="RUN")
@click.option("--address", help="The Ray cluster; by default RAY_ADDRESS, or the one on this machine.")
def state(run_name: str, address: str | None) -> None:
    """Show what the run named RUN is doing, and why."""
    from .connect import connect

    _console().print(report.state_report(connect(run_name, address=address).state()))


@main.command()
@click.argument("run_name", metavar="RUN")
@click.argument("replicas", type=int)
@click.option("--address", help="As for state.")
def scale(run_name: str, replicas: int, address: str | None) -> None:
    """Have REPLICAS replicas in the run named RUN from now on."""
    from .connect import connect

    connect(run_name, address=address).scale(replicas)


@main.command()
@click.argument("run_name", metavar="RUN")
@click.argument("node")
@click.option("--address", help="As for state.")
def drain(run_name: str, node: str, address: str | None) -> None:
    """Have the run named RUN leave NODE: its id, or the beginning of it, as ``everstep state`` shows it."""
    from .connect import connect

    connect(run_name, address=address).drain(node)


@main.command()
@click.argument("file", type=click.Path())
@click.argument("overrides", metavar="[KEY=VALUE]...", nargs=-1)
@click.option(
    "--address",
    required=True,
    envvar="RAY_API_SERVER_ADDRESS",
    help="The cluster's dashboard, as in http://127.0.0.1:8265.",
)
@click.option("--wait", is_flag=True, help="Show the job's output and wait for its end.")
def submit(file: str, overrides: tuple[str, ...], address: str, wait: bool) -> None:
    """Run FILE as a job of a Ray cluster; the folder of FILE goes along."""
    from . import jobs

    job = jobs.submit(file, address=address, overrides=overrides)
    click.echo(f"submitted  {job}")
    if wait:
        jobs.wait(job, address=address, echo=lambda text: click.echo(text, nl=False))


@main.command()
@click.argument("file", type=click.Path())
@click.argument("overrides", metavar="[KEY=VALUE]...", nargs=-1)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the figures to this file.")
def simulate(file: str, overrides: tuple[str, ...], json_file: Path | None) -> None:
    """Simulate the run that FILE describes, in virtual time, and show where its time went.

    A KEY=VALUE changes one setting, as in policies.recovery=swap or failures.rank_mtbf=1e6.
    """
    from .simulation.command import simulate

    simulate(file, overrides, json_file, _console())


@main.command()
@click.argument("run_name", metavar="RUN")
@click.option("--to", "target", required=True, type=click.Path(path_type=Path), help="The file, as in w.safetensors.")
@click.option("--step", type=int, help="Of the checkpoint; by default the newest whole one.")
def export(run_name: str, target: Path, step: int | None) -> None:
    """Write the weights of a checkpoint of RUN as one safetensors file, which needs no everstep to be read.

    RUN is the name of a run that began on this machine, or its folder, as in storage/gpt or s3://bucket/gpt.
    """
    from .export import export

    click.echo(export(run_name, target, step))


@main.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@click.option("--to", "target", required=True, type=click.Path(path_type=Path), help="The file, for elastic.envelope.")
@click.option("--distance", type=float, default=10.0, show_default=True, help="How wide: scales from the median.")
@click.option("--bin", "steps", type=int, default=500, show_default=True, help="Steps that share a band.")
def calibrate(runs: tuple[str, ...], target: Path, distance: float, steps: int) -> None:
    """Write what healthy RUNs showed as the envelope of the stability monitors for runs to come."""
    from ..monitors.envelope import Rule
    from .calibrate import calibrate

    try:
        rule = Rule(distance=distance, bin=steps)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    click.echo(calibrate(runs, target, rule))


def undisturbed_twin(run_file: RunFile) -> RunFile:
    """The same run under another name and without its planned faults."""
    return dataclasses.replace(
        run_file,
        name=f"{run_file.name}-undisturbed",
        elastic=dataclasses.replace(run_file.elastic, chaos=()),
    )


def _fit(run_file: RunFile, train: Callable[[Any], object], console: Console, label: str = "") -> dict[str, Any]:
    from .trainer import ElasticTrainer

    trainer = ElasticTrainer.from_run_file(run_file, train)
    with Progress(console, label) as progress:
        return dict(trainer.fit(on_state=progress).metrics or {})


def _users_traceback(error: EverstepError) -> str | None:
    if isinstance(error, TrainingFailedError):
        return error.traceback
    # A bad configuration has a cause only if the user's module failed on import.
    if isinstance(error, ConfigError) and error.__cause__ is not None:
        return "".join(traceback.format_exception(error.__cause__))
    return None


def _console() -> Console:
    return Console(markup=False, highlight=False, soft_wrap=True)

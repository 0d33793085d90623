"""``everstep simulate``: read, run, report."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from ...conf.errors import ConfigError
from ...conf.simulation import load
from .. import strict_json
from .engine import Engine
from .measured import measured_costs
from .report import outcome_report


def simulate(file: str, overrides: Sequence[str], json_file: Path | None, console: Console) -> None:
    """Run FILE in virtual time, and show what it came to.

    Raises:
        ConfigError: the file, its trace or its measured run is not what it should be.
    """
    if json_file is not None and not json_file.resolve().parent.is_dir():
        raise ConfigError(f"--json {json_file}: its folder does not exist; make it first")
    outcome = Engine(load(file, overrides, measured_costs)).run()
    console.print(outcome_report(outcome))
    if json_file is not None:
        json_file.write_text(strict_json.dumps(outcome.document(), indent=2) + "\n", encoding="utf-8")

"""An envelope for the stability monitors of runs to come, from the records of healthy runs."""

from collections.abc import Sequence
from pathlib import Path

from ..conf.errors import ConfigError
from ..monitors.calibration import Calibrated, save
from ..monitors.envelope import Rule
from ..monitors.envelope import calibrate as envelope_of
from .places import find
from .records import json_lines


def calibrate(runs: Sequence[str], target: Path, rule: Rule) -> str:
    """Write what these runs showed as what is healthy; best are runs that differ in their seed alone.

    Args:
        runs: by their names, or folders.
        target: a file; one that is there is replaced.

    Returns:
        One line on what was written.

    Raises:
        ConfigError: a run that has no records here, runs in which nothing was watched, or no file.
    """
    told = []
    for run in runs:
        path = Path(find(run)) / json_lines.FILE
        try:
            told.append([reading for record in json_lines.read(path) for reading in record.readings])
        except OSError as error:
            raise ConfigError(f"{run}: {path} cannot be read: {error.strerror}") from None
        if not told[-1]:
            raise ConfigError(
                f"{run} holds no readings of stability monitors: was it shorter than elastic.monitor_every, or is "
                "there nothing to watch?"
            )
    envelope = envelope_of(told, rule)
    if not envelope:
        raise ConfigError(
            f"no {rule.bin} steps of {len(told)} runs hold {rule.enough} readings of one layer: take more"
        )
    try:
        save(target, Calibrated(rule, envelope))
    except OSError as error:
        raise ConfigError(f"{target} cannot be written: {error.strerror}") from None
    return f"{target}: {len(envelope)} bands of {len(told)} runs, {rule.distance:g} scales wide"

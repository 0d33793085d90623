"""The costs of a run that was measured, read from the folder that it left behind."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import linear_regression, median
from typing import Any

from ...actors.messages import StepRecord
from ...conf.errors import ConfigError
from ..records import json_lines

# What the first step takes beside its work is none of a usual step.
_SKIPPED = 1


def measured_costs(folder: Path) -> Mapping[str, float]:
    """Costs by name, in seconds, as medians over the steps of ``metrics.jsonl`` and the recoveries of the journal.

    A step of a world of w replicas takes ``ceil(B / w) * microbatch + step`` seconds; both follow from worlds of
    different sizes. Where all worlds were alike, all of it is taken for microbatches.

    Raises:
        ConfigError: the folder holds no such run.
    """
    try:
        records = json_lines.read(folder / json_lines.FILE)[_SKIPPED:]
    except OSError:
        raise ConfigError(f"costs_from={folder}: it holds no {json_lines.FILE}; name the folder of a run") from None
    if not records:
        raise ConfigError(f"costs_from={folder}: its run is too short to measure anything; let it go further")
    return {**_steps(records), **_recoveries(folder)}


def _steps(records: list[StepRecord]) -> dict[str, float]:
    seconds: dict[int, list[float]] = defaultdict(list)
    for record in records:
        seconds[-(-record.microbatches // record.world)].append(record.seconds)
    usual = {quota: median(held) for quota, held in seconds.items()}
    if len(usual) > 1:
        slope, intercept = linear_regression(list(usual), list(usual.values()))
        if slope > 0 and intercept >= 0:
            return {"microbatch": slope, "step": intercept}
    return {"microbatch": median(value / quota for quota, value in usual.items())}


def _recoveries(folder: Path) -> dict[str, float]:
    phases = [entry["phases"] for entry in _entries(folder) if entry.get("what") == "recovered"]
    named = {"detect": "notice and report", "rebuild": "rebuild"}
    return {cost: median(held[phase] for held in phases) for cost, phase in named.items() if phases}


def _entries(folder: Path) -> Iterator[Mapping[str, Any]]:
    """Of all lives of the controller; a line that is torn says nothing."""
    for path in sorted(folder.glob("journal*.jsonl")):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if isinstance(entry, dict):
                yield entry

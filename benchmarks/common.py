"""What every benchmark shares: rows of figures, a table for people, a JSON file for programs."""

import argparse
import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import ray
from everstep.orchestrator.connect import start_ray
from rich.console import Console
from rich.table import Table

_RESAMPLES = 10_000
_DISTRIBUTIONS = ("everstep", "torch", "ray", "torchft")


@dataclass(frozen=True)
class Row:
    """One figure.

    Attributes:
        interval: its 95 % bootstrap interval, if it has one.
    """

    name: str
    value: float
    unit: str
    interval: tuple[float, float] | None = None


def median_row(name: str, values: Sequence[float], unit: str, seed: int) -> Row:
    """The median of repeated measurements, with its interval."""
    return Row(name, float(np.median(values)), unit, bootstrap(values, seed))


def bootstrap(values: Sequence[float], seed: int) -> tuple[float, float]:
    """The 95 % percentile bootstrap interval of the median."""
    rng = np.random.default_rng(seed)
    medians = np.median(rng.choice(np.asarray(values, dtype=float), (_RESAMPLES, len(values))), axis=1)
    low, high = np.quantile(medians, (0.025, 0.975))
    return float(low), float(high)


def percentile(values: Sequence[float], percent: float) -> float:
    """Interpolated between the two nearest values."""
    return float(np.percentile(values, percent))


def parser(description: str | None) -> argparse.ArgumentParser:
    """A command line with what all benchmarks take."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--seed", type=int, default=0, help="of everything that is drawn (default: 0)")
    made.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    return made


def publish(title: str, rows: Sequence[Row], options: argparse.Namespace, **more: str | None) -> None:
    """Show the rows and, if asked to, write them; ``more`` are further versions."""
    shown = Table("figure", "value", "95 % interval", "unit", title=title, title_justify="left")
    shown.columns[0].no_wrap = True
    for column in shown.columns[1:3]:
        column.justify = "right"
    for row in rows:
        between = f"{row.interval[0]:.4g} to {row.interval[1]:.4g}" if row.interval else ""
        shown.add_row(row.name, f"{row.value:.5g}", between, row.unit)
    console().print(shown)
    if options.json is not None:
        text = json.dumps(document(rows, options.seed, **more), indent=2)
        options.json.write_text(text + "\n", encoding="utf-8")


@contextmanager
def own_ray(ranks: int) -> Iterator[None]:
    """A Ray cluster on this machine with room for so many ranks, which nobody else uses."""
    # More logical CPUs than cores: ranks share them, as those of the peers do.
    start_ray(ranks)
    try:
        yield
    finally:
        ray.shutdown()


def console() -> Console:
    """Where benchmarks print; wide enough for a table when the output goes to a file."""
    made = Console(markup=False, highlight=False)
    if not made.is_terminal:
        made.width = 110
    return made


def document(rows: Sequence[Row], seed: int, **more: str | None) -> dict[str, object]:
    """The content of the JSON file; the ends of an interval are rows of their own."""
    figures: list[Mapping[str, object]] = []
    for row in rows:
        figures.append({"name": row.name, "value": row.value, "unit": row.unit})
        for end, value in zip(("low", "high"), row.interval or (), strict=False):
            figures.append({"name": f"{row.name}_{end}", "value": value, "unit": row.unit})
    return {"rows": figures, "versions": {**versions(), **more}, "seed": seed}


def versions() -> dict[str, str | None]:
    """Of Python and of what was measured; None for what is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for distribution in _DISTRIBUTIONS:
        try:
            found[distribution] = version(distribution)
        except PackageNotFoundError:
            found[distribution] = None
    return found

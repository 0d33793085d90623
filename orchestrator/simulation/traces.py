"""A file of failures: CSV with a header, or one JSON object a line, both with the same keys.

``time`` (seconds from the start, never falling), ``what`` (rank, node, rack or slow), ``target`` (which one, from 0;
ranks by their slots), and where wanted ``repair`` (seconds until it can be used again), for ``slow`` also ``factor``
(by which a microbatch takes longer) and ``seconds`` (for how long).
"""

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from ...conf.errors import ConfigError
from ...conf.files import text_of

_NEEDED = ("time", "what", "target")
_KNOWN = (*_NEEDED, "repair", "factor", "seconds")


@dataclass(frozen=True)
class Line:
    """One failure as the file says it."""

    time: float
    what: str
    target: int
    repair: float | None = None
    factor: float = 1.0
    seconds: float = 0.0


def read(path: Path, counts: Mapping[str, int]) -> tuple[Line, ...]:
    """The whole file.

    Args:
        path: ``.jsonl`` is read as JSON lines, everything else as CSV.
        counts: what can fail, and how many there are of it.

    Raises:
        ConfigError: one line that names the file and the line in it.
    """
    said = _objects(path) if path.suffix == ".jsonl" else _rows(path)
    lines: list[Line] = []
    for number, values in said:
        try:
            line = _line(values, counts)
            if lines and line.time < lines[-1].time:
                raise ValueError(f"time runs backwards, from {lines[-1].time:g} to {line.time:g} s; sort the lines")
        except ValueError as error:
            raise ConfigError(f"{path}, line {number}: {error}") from None
        lines.append(line)
    return tuple(lines)


def _objects(path: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    for number, text in enumerate(text_of(path).splitlines(), 1):
        if not text.strip():
            continue
        try:
            values = json.loads(text)
        except ValueError as error:
            raise ConfigError(f"{path}, line {number}: no JSON: {error}") from None
        if not isinstance(values, dict):
            raise ConfigError(f"{path}, line {number}: {text.strip()} is no object with {', '.join(_NEEDED)}")
        yield number, values


def _rows(path: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    rows = csv.reader(text_of(path).splitlines())
    header = [name.strip() for name in next(rows, [])]
    if not set(_NEEDED) <= set(header):
        raise ConfigError(f"{path}, line 1: a header with {', '.join(_NEEDED)} is missing")
    for row in rows:
        if not row:
            continue
        if len(row) != len(header):
            raise ConfigError(f"{path}, line {rows.line_num}: {len(row)} values for {len(header)} columns")
        # An empty cell says nothing.
        yield rows.line_num, {name: cell.strip() for name, cell in zip(header, row, strict=True) if cell.strip()}


def _line(values: Mapping[str, object], counts: Mapping[str, int]) -> Line:
    unknown = sorted(map(str, values.keys() - set(_KNOWN)))
    if unknown:
        raise ValueError(f"{unknown[0]} is not known; known here: {', '.join(_KNOWN)}")
    missing = [name for name in _NEEDED if name not in values]
    if missing:
        raise ValueError(f"{missing[0]} is missing")
    what = str(values["what"])
    if what not in counts:
        raise ValueError(f"what={what} is not known; use one of: {', '.join(counts)}")
    target = _number("target", values["target"])
    if target != int(target) or not target < counts[what]:
        raise ValueError(f"{what} {values['target']} is unknown, there are 0..{counts[what] - 1}")
    repair = _number("repair", values["repair"]) if "repair" in values else None
    factor = _number("factor", values.get("factor", 1.0))
    if factor < 1:
        raise ValueError(f"factor={factor:g} must be at least 1")
    seconds = _number("seconds", values.get("seconds", 0.0))
    return Line(_number("time", values["time"]), what, int(target), repair, factor, seconds)


def _number(name: str, value: object) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = -1.0
    if not (isfinite(number) and number >= 0):
        raise ValueError(f"{name}={value} must be a number of at least 0")
    return number

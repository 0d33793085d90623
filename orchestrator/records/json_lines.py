"""A file with one line of JSON for each step. A line is whole, or it is not there."""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...actors.messages import StepRecord
from ...monitors.reading import Reading
from .. import strict_json

FILE = "metrics.jsonl"
_PART_BYTES = 1 << 20


class JsonLines:
    """Appends to a file.

    When a run goes on in the folder of an earlier life, the file keeps the lines before the first step that comes.

    Args:
        path: of the file.
    """

    name = FILE
    again = True

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        self._end = 0
        self._next = 0

    def write(self, records: Sequence[StepRecord]) -> None:
        first = records[0].step
        if self._file is not None and first < self._next:
            # Everybody went back: these steps are taken once more.
            self._end = _end_before(self._path, first)
            os.ftruncate(self._file, self._end)
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.touch()
            self._end = _end_before(self._path, first)
            self._file = _taken_over(self._path, self._end)
        data = b"".join(f"{strict_json.dumps(asdict(record))}\n".encode() for record in records)
        try:
            _write(self._file, data, self._end)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._end)
            raise
        self._end += len(data)
        self._next = records[-1].step + 1

    def close(self, failures: Mapping[int, Exception]) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def read(path: Path) -> list[StepRecord]:
    """The records in a file, also of a run that goes on.

    Raises:
        OSError: there is no such file.
    """
    return [record for record, _ in _lines(path)]


def _taken_over(path: Path, end: int) -> int:
    """Another file with the first bytes of this one in its place: whoever still writes to that one spoils nothing."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    with path.open("rb") as old, fresh.open("wb") as new:
        left = end
        while left and (part := old.read(min(left, _PART_BYTES))):
            new.write(part)
            left -= len(part)
    fresh.replace(path)
    return os.open(path, os.O_WRONLY)


def _write(file: int, data: bytes, at: int) -> None:
    while data:
        written = os.pwrite(file, data, at)
        data, at = data[written:], at + written


def _end_before(path: Path, step: int) -> int:
    """Where the whole lines of the steps before ``step`` end."""
    end = 0
    for record, after in _lines(path):
        if record.step >= step:
            break
        end = after
    return end


def _lines(path: Path) -> Iterator[tuple[StepRecord, int]]:
    """Records and the ends of their lines, up to the first line that is none."""
    end = 0
    with path.open("rb") as file:
        for line in file:
            end += len(line)
            try:
                assert line.endswith(b"\n")
                record = _record(json.loads(line))
            except (AssertionError, TypeError, ValueError):
                return
            yield record, end


def _record(fields: dict[str, Any]) -> StepRecord:
    for name in ("lr", "numbers"):
        fields[name] = _floats(fields[name])
    for name in ("loss", "weight", "seconds", "at", "flops"):
        fields[name] = None if fields[name] is None else float(fields[name])
    # Runs of before have none.
    told = [Reading(**{**one, "numbers": _floats(one["numbers"])}) for one in fields.pop("readings", ())]
    return StepRecord(**fields, readings=tuple(told))


def _floats(numbers: Mapping[str, Any]) -> dict[str, float]:
    return {key: float(value) for key, value in numbers.items()}

"""What the files of a run hold: lines of JSON, points for TensorBoard, and the calls of Ray Train's callbacks."""

import errno
import math
import os
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray.train
from everstep.actors.messages import StepRecord
from everstep.monitors.reading import Reading
from everstep.orchestrator.records import json_lines
from everstep.orchestrator.records.callbacks import Callback, run_context
from everstep.orchestrator.records.flat import flat
from everstep.orchestrator.records.json_lines import JsonLines
from everstep.orchestrator.records.tensorboard import TensorBoard
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.record_writer import masked_crc32c

from .machine_script import record_of
from .test_strict_json import strict


def records(*steps: int, **numbers: float) -> list[StepRecord]:
    return [record_of(step, **numbers) for step in steps]


def test_flat_names_collide_with_nothing() -> None:
    shown = flat(record_of(3, accuracy=0.5, loss=7.0))
    assert shown["loss"] == 1.0
    assert shown["numbers/loss"] == 7.0
    assert shown["accuracy"] == 0.5
    assert shown["lr/AdamW"] == 0.25
    assert (shown["step"], shown["skipped"]) == (3, None)


# --- lines of JSON


def test_lines_read_back_to_the_bit_and_are_valid_json(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "metrics.jsonl"
    said = [record_of(0, x=0.1 + 0.2), replace(record_of(1, x=math.inf), loss=math.nan, skipped='"\n', flops=None)]
    sink = JsonLines(path)
    sink.write(said[:1])
    sink.write(said[1:])
    sink.close({})
    lines = path.read_text().splitlines()
    assert [strict(line)["step"] for line in lines] == [0, 1]  # type: ignore[index]
    read = json_lines.read(path)
    assert read[0] == said[0]
    assert math.isnan(read[1].loss)
    assert replace(read[1], loss=0.0) == replace(said[1], loss=0.0)


def test_a_run_that_goes_on_replaces_what_it_does_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    JsonLines(path).write(records(0, 1, 2, 3))
    whole = path.read_bytes()
    with path.open("ab") as file:
        file.write(whole[:20])
    assert [record.step for record in json_lines.read(path)] == [0, 1, 2, 3]
    again = JsonLines(path)
    again.write(records(2, x=1.0))
    again.write(records(3, x=1.0))
    assert json_lines.read(path) == [*records(0, 1), *records(2, 3, x=1.0)]
    assert path.read_bytes().endswith(b"\n")
    JsonLines(path).write(records(9))
    assert [record.step for record in json_lines.read(path)] == [0, 1, 2, 3, 9]


@pytest.mark.parametrize("fits", [0, 1, 100])
def test_a_full_disk_leaves_whole_lines_and_no_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fits: int) -> None:
    path = tmp_path / "metrics.jsonl"
    sink = JsonLines(path)
    sink.write(records(0))
    write, room = os.pwrite, [fits]

    def filling(file: int, data: bytes, at: int) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = write(file, data[: room[0]], at)
        room[0] -= written
        return written

    monkeypatch.setattr(os, "pwrite", filling)
    with pytest.raises(OSError, match="No space left"):
        sink.write(records(1, 2))
    assert path.read_bytes().count(b"\n") == 1
    assert path.read_bytes().endswith(b"\n")
    room[0] = 10**6
    sink.write(records(1, 2))
    assert json_lines.read(path) == records(0, 1, 2)


# --- TensorBoard


def events(folder: Path) -> Iterator[Event]:
    """Read event files as TensorBoard does, checksums and all, the oldest file first."""
    for path in sorted(folder.glob("*tfevents*"), key=lambda path: path.stat().st_mtime_ns):
        data = path.read_bytes()
        while data:
            header, check = data[:8], struct.unpack("I", data[8:12])[0]
            assert check == masked_crc32c(header)
            (length,) = struct.unpack("Q", header)
            body, check = data[12 : 12 + length], struct.unpack("I", data[12 + length : 16 + length])[0]
            assert check == masked_crc32c(body)
            yield Event.FromString(body)
            data = data[16 + length :]


def points(folder: Path) -> dict[int, dict[str, float]]:
    """By step and tag, as TensorBoard shows them: a new start takes back what was said of its steps."""
    shown: dict[int, dict[str, float]] = {}
    for event in events(folder):
        if event.session_log.status == SessionLog.START:
            shown = {step: tags for step, tags in shown.items() if step < event.step}
        for value in event.summary.value:
            shown.setdefault(event.step, {})[value.tag] = value.simple_value
    return shown


def test_tensorboard_shows_every_number_of_every_step(tmp_path: Path) -> None:
    sink = TensorBoard(tmp_path)
    sink.write(records(0, 1, accuracy=0.5))
    sink.write(records(2, accuracy=math.nan))
    shown = points(tmp_path)
    assert list(shown) == [0, 1, 2]
    expected = {"loss": 2.0, "weight": 100.0, "seconds": 0.5, "lr/AdamW": 0.5, "accuracy": 0.5}
    assert shown[1] == {**expected, "microbatches": 8.0, "world": 4.0, "flops": 600.0}
    assert math.isnan(shown[2]["accuracy"])
    assert [event.wall_time for event in events(tmp_path) if event.summary.value] == [1000.0, 1001.0, 1002.0]
    sink.close({})


def test_a_run_that_goes_on_takes_back_what_it_does_again(tmp_path: Path) -> None:
    for first, loss in ((0, 1.0), (2, 0.25)):
        sink = TensorBoard(tmp_path)
        sink.write([replace(record, loss=loss) for record in records(*range(first, 4))])
        sink.close({})
    assert [tags["loss"] for tags in points(tmp_path).values()] == [1.0, 1.0, 0.25, 0.25]


def test_a_full_disk_begins_a_new_event_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = TensorBoard(tmp_path)
    sink.write(records(0))
    with monkeypatch.context() as patched:

        def full(_: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            sink.write(records(1))
    sink.write(records(1, 2))
    sink.close({})
    assert list(points(tmp_path)) == [0, 1, 2]
    assert len(list(tmp_path.iterdir())) == 2


# --- callbacks


class Seen(ray.train.UserCallback):  # type: ignore[misc]
    def __init__(self) -> None:
        self.reports: list[tuple[str, int, list[dict[str, Any]], object]] = []
        self.exceptions: dict[int, Exception] = {}

    def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: object) -> None:
        asked_for = run_context.scaling_config.num_workers
        self.reports.append((run_context.get_run_config().name, asked_for, metrics, checkpoint))

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        self.exceptions = worker_exceptions


def test_a_callback_is_called_as_ray_train_does() -> None:
    seen = Seen()
    context = run_context(ray.train.RunConfig(name="gpt"), ray.train.ScalingConfig(num_workers=3), {"steps": 2})
    sink = Callback(seen, context)
    sink.write(records(0, accuracy=0.5))
    sink.close({})
    assert seen.reports == [("gpt", 3, [flat(record_of(0, accuracy=0.5))], None)]
    assert seen.exceptions == {}
    assert context.train_loop_config == {"steps": 2}
    error = ValueError("bad")
    sink.close({2: error})
    assert seen.exceptions == {2: error}


def test_readings_come_back_to_the_bit_and_the_sickest_of_a_layer_is_shown(tmp_path: Path) -> None:
    told = (
        Reading("attention", 4, "a", 0, {"delta2.entropy": 0.3, "delta2.norm": 1.0, "delta3.norm": 5.0}),
        Reading("attention", 4, "a", 1, {"delta2.entropy": 0.1 + 0.2, "delta2.norm": 2.0}),
        Reading("router", 4, "b", None, {"similarity": math.nan}),
        Reading("router", 4, "b", None, {"similarity": 0.9}),
        Reading("baseline", 4, "", None, {"loss": 2.5}),
    )
    record = replace(record_of(5), readings=told)
    sink = JsonLines(tmp_path / "metrics.jsonl")
    sink.write([record])
    sink.close({})
    (back,) = json_lines.read(tmp_path / "metrics.jsonl")
    assert repr(back) == repr(record)
    shown = {name: value for name, value in flat(back).items() if name.startswith("stability/")}
    assert math.isnan(float(shown.pop("stability/b/similarity") or 0))
    assert shown == {"stability/a/delta2.entropy": 0.3, "stability/a/delta2.norm": 2.0, "stability/baseline/loss": 2.5}
    assert "readings" not in flat(back)

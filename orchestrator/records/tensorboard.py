"""Event files for TensorBoard, one point for each number of each step. TensorBoard itself need not be here."""

import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...actors.messages import StepRecord
from .flat import flat

FOLDER = "tensorboard"
# The axes of a plot, and what is no number.
_NO_POINTS = ("step", "at", "skipped")


class TensorBoard:
    """Writes event files.

    Args:
        folder: for ``tensorboard --logdir``.
    """

    name = FOLDER
    again = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Any = None
        self._next = 0

    def write(self, records: Sequence[StepRecord]) -> None:
        # Comes with ray[train].
        from tensorboardX.proto.event_pb2 import Event, SessionLog
        from tensorboardX.proto.summary_pb2 import Summary

        try:
            if self._writer is None or records[0].step < self._next:
                self._writer = self._writer or self._open()
                # What an earlier life, a failed write or a course that was left has said of them does not count.
                start = SessionLog(status=SessionLog.START)
                first = records[0]
                self._writer.write_event(Event(wall_time=first.at, step=first.step, session_log=start))
            for record in records:
                points = [
                    Summary.Value(tag=name, simple_value=value)
                    for name, value in flat(record).items()
                    if name not in _NO_POINTS and value is not None
                ]
                event = Event(wall_time=record.at, step=record.step, summary=Summary(value=points))
                self._writer.write_event(event)
            self._writer.flush()
            self._next = records[-1].step + 1
        except OSError:
            # Nobody knows where that file ends now.
            self._writer = None
            raise

    def close(self, failures: Mapping[int, Exception]) -> None:
        if self._writer is not None:
            self._writer.close()

    def _open(self) -> Any:
        from tensorboardX.event_file_writer import EventsWriter

        self._folder.mkdir(parents=True, exist_ok=True)
        suffix = f".{os.getpid()}.{uuid.uuid4().hex[:8]}"
        return EventsWriter(str(self._folder / "events"), suffix)

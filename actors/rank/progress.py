"""What the training thread is at, in memory that others can read while it is stuck or stopped; no torch.

The memory is a file without a name, which ends with the last process that has it open, so nothing is left behind.
Whoever may look at the process finds it among its open files (``watch``).
"""

import contextlib
import mmap
import os
import struct
import threading
import time
import zlib
from pathlib import Path

from ...monitors.progress import Activity, Pending, ProgressRecord
from ...monitors.spent import Tally
from ...policies.world import Position

_NAME = "everstep-progress"
_SIZE = mmap.PAGESIZE
# Of the counter; it is odd while something is written.
_COUNTER = struct.Struct("<Q")
# step, unit, attempt, activity, microbatch, when any of these changed
_PLACE = struct.Struct("<qqqqqd")
_ACTIVITY = struct.Struct("<qqd")
# when any of these changed, sequence, elements, trail, kind, dtype, group
_PENDING = struct.Struct("<dqqq16s16s40s")
_STAGE_BYTES = 80
_STAGE = struct.Struct(f"<d{_STAGE_BYTES}s")
_PLACE_AT = _COUNTER.size
_ACTIVITY_AT = _PLACE_AT + _PLACE.size - _ACTIVITY.size
_PENDING_AT = _PLACE_AT + _PLACE.size
_STAGE_AT = _PENDING_AT + _PENDING.size
_END = _STAGE_AT + _STAGE.size
_ACTIVITIES = tuple(Activity)
_CODES = {activity: code for code, activity in enumerate(_ACTIVITIES)}
_OUTSIDE = _CODES[Activity.OUTSIDE]
_NOWHERE = -1
# A writer needs a microsecond; one that needs longer was stopped in the middle.
_TRIES = 100


class Board:
    """What this rank is at. Every call costs about a microsecond and may come from any thread.

    Attributes:
        tally: what its training steps have cost; heartbeats tell it.
    """

    def __init__(self) -> None:
        file = os.memfd_create(_NAME)
        os.ftruncate(file, _SIZE)
        # It keeps a descriptor of its own.
        self._memory = mmap.mmap(file, _SIZE)
        os.close(file)
        self._counter = memoryview(self._memory).cast("Q")
        self._lock = threading.Lock()
        self._stage = ""
        self._group, self._sequence, self._trail = "", 0, 0
        self.tally = Tally()
        self.at(Position(0))
        self.stage = "user code before begin"

    @property
    def stage(self) -> str:
        """What the user's function is at, in words: "training", "evaluation", or what it has announced."""
        return self._stage

    @stage.setter
    def stage(self, name: str) -> None:
        self._stage = name
        self._write(_STAGE, _STAGE_AT, time.monotonic(), _cut(name, _STAGE_BYTES))

    def at(self, position: Position) -> None:
        """It came to this position, and is outside of its microbatches."""
        place = position.step, position.unit, position.attempt
        self._write(_PLACE, _PLACE_AT, *place, _OUTSIDE, _NOWHERE, time.monotonic())

    def doing(self, activity: Activity, microbatch: int = _NOWHERE) -> None:
        """It does something else now."""
        self._write(_ACTIVITY, _ACTIVITY_AT, _CODES[activity], microbatch, time.monotonic())

    def entered(self, group: str, kind: str, elements: int, dtype: str) -> None:
        """It entered another collective; those of one group are counted."""
        if group != self._group:
            self._group, self._sequence, self._trail = group, 0, 0
        self._sequence += 1
        self._trail = zlib.crc32(f"{kind} {elements} {dtype}".encode(), self._trail)
        names = kind.encode(), dtype.encode(), group.encode()
        self._write(_PENDING, _PENDING_AT, time.monotonic(), self._sequence, elements, self._trail, *names)

    def record(self) -> ProgressRecord | None:
        """What others read, as of now."""
        return _read(self._memory)

    def close(self) -> None:
        """Give the memory back; whoever has it open keeps it."""
        self._counter.release()
        self._memory.close()

    def _write(self, layout: struct.Struct, place: int, *fields: object) -> None:
        with self._lock:
            counter = self._counter
            counter[0] += 1
            layout.pack_into(self._memory, place, *fields)
            counter[0] += 1


class Watched:
    """The board of another process of this machine, which may be stopped, stuck or gone."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._last: ProgressRecord | None = None

    def record(self, process: str = "") -> ProgressRecord | None:
        """What it is at; what it was at when last seen, if it was stopped while it wrote. None if never seen whole.

        Args:
            process: what the kernel says of the process.
        """
        self._last = _read(self._memory, process) or self._last
        return self._last

    def close(self) -> None:
        """Look no more."""
        self._memory.close()


def watch(pid: int) -> Watched | None:
    """The board of a process; None if it has none, is gone, or is not to be looked at from here."""
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            # Others may close files meanwhile.
            with contextlib.suppress(OSError):
                if os.readlink(entry).startswith(f"/memfd:{_NAME}"):
                    with open(entry, "rb") as file:
                        return Watched(mmap.mmap(file.fileno(), _SIZE, access=mmap.ACCESS_READ))
    return None


def _read(memory: mmap.mmap, process: str = "") -> ProgressRecord | None:
    """A record that nobody wrote to meanwhile; clocks of one machine are the same for all of its processes."""
    for _ in range(_TRIES):
        held = memory[:_END]
        if _COUNTER.unpack_from(held)[0] % 2 == 0 and held == memory[:_END]:
            break
        time.sleep(0)
    else:
        return None
    step, unit, attempt, activity, microbatch, moved = _PLACE.unpack_from(held, _PLACE_AT)
    entered, sequence, elements, trail, *names = _PENDING.unpack_from(held, _PENDING_AT)
    announced, name = _STAGE.unpack_from(held, _STAGE_AT)
    kind, dtype, group, stage = (text.rstrip(b"\0").decode() for text in (*names, name))
    reducing = _ACTIVITIES[activity] is Activity.REDUCING
    return ProgressRecord(
        step,
        unit,
        attempt,
        _ACTIVITIES[activity],
        stage,
        microbatch if microbatch != _NOWHERE else None,
        Pending(group, sequence, kind, elements, dtype, trail) if reducing and sequence else None,
        max(0.0, time.monotonic() - max(moved, entered, announced)),
        process,
    )


def _cut(text: str, size: int) -> bytes:
    """As UTF-8, no longer than ``size`` and whole characters only."""
    return text.encode()[:size].decode(errors="ignore").encode()

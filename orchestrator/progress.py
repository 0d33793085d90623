"""A run's progress on a console: one living line on a terminal, else a plain line on every change."""

import time
from collections.abc import Callable, Sequence
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from .report import recovery_line, status_line, verdict_line
from .view import Phase, RunState, VerdictRecord


class Progress:
    """Shows the looks at a run that it is called with. A context manager: leaving it ends the living line.

    Args:
        console: where to.
        label: put in front of each line.
        interval: seconds between plain lines while nothing but the step changes.
        clock: seconds, of any origin.
    """

    def __init__(
        self,
        console: Console,
        label: str = "",
        interval: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console
        self._label = f"{label}  " if label else ""
        self._interval = interval
        self._clock = clock
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._line = ""
        self._changes: tuple[object, ...] = ()
        self._recoveries = self._warnings = 0
        self._verdict: VerdictRecord | None = None
        self._due = float("-inf")

    def __enter__(self) -> "Progress":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, state: RunState) -> None:
        for record in state.recoveries[self._recoveries :]:
            self._print(recovery_line(record))
        self._recoveries = len(state.recoveries)
        self._tell(state.verdicts)
        for text in state.warnings[self._warnings :]:
            self._print(f"warning  {text}")
        self._warnings = len(state.warnings)
        line = status_line(state)
        if self._live is not None:
            self._live.update(Text(self._label + line, no_wrap=False, overflow="fold"), refresh=True)
        elif line != self._line and (_changes(state) != self._changes or self._clock() >= self._due):
            self._line, self._changes = line, _changes(state)
            self._due = self._clock() + self._interval
            self._print(line)

    def _tell(self, verdicts: Sequence[VerdictRecord]) -> None:
        """Those that are new; only the newest are kept, so they cannot be counted."""
        known = verdicts.index(self._verdict) + 1 if self._verdict in verdicts else 0
        for record in verdicts[known:]:
            self._print(verdict_line(record))
            self._verdict = record

    def _print(self, line: str) -> None:
        # Whole, however long: a log wants one line.
        self._console.print(self._label + line, markup=False, highlight=False, soft_wrap=True)


def _changes(state: RunState) -> tuple[object, ...]:
    """What is worth a line at once."""
    reason = "" if state.phase is Phase.RUNNING else state.reason
    return state.phase, state.generation, state.world, reason

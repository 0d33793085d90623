"""The language of scenarios: one command a line, and below it, indented, what the machine answers.

Lines that begin with ``#`` are remarks. The first command says what world it is, all others what happens in it, until
another world begins. Ranks go by the numbers in which they were asked for; where the machine says "rank 1.0" it means
the seat: replica 1, coordinate 0. Nobody does anything by itself: a rank that is killed ends when the scenario says so.
But while time passes, everybody who is connected, not silent and not killed says that it lives.
"""

from dataclasses import dataclass
from pathlib import Path

from .commands import command_of
from .stage import Advance, advance
from .words import wrapped
from .world import stage_of


class ScenarioError(Exception):
    """A line that cannot be played: file, line, what is wrong."""


@dataclass(frozen=True)
class Line:
    """A command and the remarks and empty lines before it, with its place in the file."""

    number: int
    remarks: tuple[str, ...]
    text: str


@dataclass(frozen=True)
class Scenario:
    """A file: its commands, what stands under them, and what comes after the last one."""

    path: Path
    lines: tuple[Line, ...]
    rest: tuple[str, ...]

    def played(self, machine: Advance = advance) -> str:
        """The same file with what the machine really answers.

        Raises:
            ScenarioError: a line cannot be played.
        """
        written: list[str] = []
        stage = None
        for line in self.lines:
            written += [*line.remarks, line.text]
            try:
                if stage is None or line.text.startswith("world: "):
                    stage = stage_of(line.text, machine)
                else:
                    for answer in stage.play(command_of(line.text)):
                        written += wrapped(answer)
            except ValueError as error:
                raise ScenarioError(f"{self.path.name}:{line.number}: {error}") from error
        return "\n".join([*written, *self.rest]) + "\n"


def read(path: Path) -> Scenario:
    """Take a file apart; what is indented is an answer, and is left out."""
    lines: list[Line] = []
    remarks: list[str] = []
    for number, text in enumerate(path.read_text().splitlines(), 1):
        if text.startswith(" "):
            continue
        if not text or text.startswith("#"):
            remarks.append(text)
            continue
        lines.append(Line(number, tuple(remarks), text))
        remarks = []
    return Scenario(path, tuple(lines), tuple(remarks))

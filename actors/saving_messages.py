"""What ranks say of the states that they save and go back to."""

from dataclasses import dataclass

from ..policies.world import Generation


@dataclass(frozen=True)
class Stored:
    """A part of a saved state is written to storage, durably; or will not be, because of ``problem``.

    Attributes:
        step: optimizer steps that the state has taken.
        generation: of the group that committed the last of them: its members divide the state among them.
        part: which it is, of ``parts``.
        file: its name in the folder of that step; ``bytes`` long, with this SHA-256.
    """

    incarnation: str
    step: int
    generation: Generation
    part: int
    parts: int
    file: str = ""
    bytes: int = 0
    sha256: str = ""
    problem: str = ""


@dataclass(frozen=True)
class Cadence:
    """What is saved, a checkpoint or a snapshot, is saved at another interval from here on: ``reason`` says all."""

    incarnation: str
    saved: str
    reason: str


@dataclass(frozen=True)
class Unreadable:
    """The saved state that everybody is to go back to cannot be read here, because of ``problem``."""

    incarnation: str
    source: str
    step: int
    problem: str

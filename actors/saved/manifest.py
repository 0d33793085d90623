"""What says that a saved state is whole: written last, it names every part of it with its size and its SHA-256."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ...conf.errors import NewerFormatError, SavedStateError

FORMAT = 1
FILE = "manifest.json"
_FOLDER = "step-"


@dataclass(frozen=True)
class Part:
    """One file of a saved state."""

    file: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """One saved state.

    Attributes:
        run: that it belongs to.
        step: how many optimizer steps it has taken.
        generation: of the group that committed the last of them.
        world: ranks in that group.
        parts: all files; the first one also holds what is no tensor.
        identity: facts that a run must share to go on from it: of model, data set and seed.
    """

    run: str
    step: int
    generation: str
    world: int
    parts: tuple[Part, ...]
    identity: Mapping[str, str] = field(default_factory=dict)

    def encode(self) -> bytes:
        """As a file, with a digest of itself."""
        body = {"format": FORMAT, **asdict(self)}
        return json.dumps({**body, "sha256": _digest(body)}, indent=1).encode() + b"\n"

    @classmethod
    def decode(cls, data: bytes) -> "Manifest":
        """From a file.

        Raises:
            NewerFormatError: a newer version of everstep has written it.
            SavedStateError: it is damaged.
        """
        try:
            body = json.loads(data)
            version, digest = body["format"], body.pop("sha256")
        except (ValueError, KeyError, TypeError, AttributeError):
            raise SavedStateError("its manifest is damaged: it is cut, or it is no manifest") from None
        # What says a format is to be trusted itself: all formats have this digest.
        if digest != _digest(body):
            raise SavedStateError("its manifest is damaged: its SHA-256 is another one")
        if version != FORMAT:
            raise NewerFormatError(f"its manifest has format {version}, this version of everstep reads {FORMAT}")
        del body["format"]
        return cls(**{**body, "parts": tuple(Part(**part) for part in body["parts"])})


def folder_of(step: int) -> str:
    """Where the state after ``step`` steps lies, below the folder of all saved states."""
    return f"{_FOLDER}{step:08d}"


def step_of(folder: str) -> int | None:
    """The reverse; None for a folder that holds no saved state."""
    number = folder.removeprefix(_FOLDER)
    return int(number) if number != folder and number.isdigit() and folder == folder_of(int(number)) else None


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()

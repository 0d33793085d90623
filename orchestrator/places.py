"""Where a run keeps what outlives it: records in a local folder, and on object storage if that is its storage path."""

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from ..actors.saved.storage import PATIENCE_S, Storage, below, is_remote, shown
from ..conf.errors import ConfigError, SavedStateError

HOME = "EVERSTEP_HOME"


@dataclass(frozen=True)
class Place:
    """Of one run.

    Attributes:
        folder: on this machine: journal and records.
        storage: what is durable: the same folder, or the URI of one on object storage, to which the records are copied.
    """

    folder: str
    storage: str

    @property
    def remote(self) -> bool:
        """Whether the records are copied to object storage."""
        return is_remote(self.storage)


def place_of(storage_path: str | None, run: str, patience: float = PATIENCE_S) -> Place | None:
    """Where a run of this name keeps things; None if it has no storage path. It is tried out.

    Raises:
        ConfigError: it cannot be written; in one line.
    """
    if storage_path is None:
        return None
    scheme, _, path = storage_path.partition("://")
    if scheme == "file":
        storage_path = path
    if is_remote(storage_path):
        place = Place(str(home() / "runs" / run), below(storage_path, run))
    else:
        folder = str(Path(storage_path).expanduser().resolve() / run)
        place = Place(folder, folder)
    try:
        Path(place.folder).mkdir(parents=True, exist_ok=True)
        Storage(place.folder, patience).probe()
        if place.remote:
            Storage(place.storage, patience).probe()
    except (OSError, SavedStateError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"storage_path={shown(storage_path)!r} cannot be written: {why}") from None
    return place


def remember(run: str, place: Place) -> None:
    """Note where a run keeps things, so that its name is enough to find them; on this machine, if that can be."""
    note = _note(run)
    with contextlib.suppress(OSError):
        note.parent.mkdir(parents=True, exist_ok=True)
        # A URI may hold a password.
        with open(os.open(note, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            json.dump({"storage": place.storage}, file)


def find(run: str) -> str:
    """Where a run keeps what is durable.

    Args:
        run: its name, if it began on this machine; or its folder or URI.

    Raises:
        ConfigError: there is none; in one line.
    """
    if is_remote(run):
        return run
    if Path(run).is_dir():
        return str(Path(run).resolve())
    try:
        return str(json.loads(_note(run).read_text(encoding="utf-8"))["storage"])
    except (OSError, ValueError, LookupError):
        raise ConfigError(
            f"{run!r} is neither a folder, nor the name of a run with a storage_path that began on this machine: give "
            "the run's folder, as in storage/gpt or s3://bucket/gpt"
        ) from None


def home() -> Path:
    """What everstep keeps on this machine: ``EVERSTEP_HOME``, by default ``~/.everstep``."""
    return Path(os.environ.get(HOME) or Path.home() / ".everstep")


def _note(run: str) -> Path:
    return home() / "notes" / f"{run}.json"

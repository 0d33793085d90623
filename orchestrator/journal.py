"""The record of a run: one JSON line for everything that the machine found worth saying, kept in several places.

Each controller life writes a journal of its own, so that one that was replaced can spoil nothing. The first line says
what it is. What cannot be read is said and left out: safety rests on terms and on what ranks report.
"""

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from .machine.events import Record

VERSION = 1
FOLDER = "journal"

Entry = Mapping[str, object]


class JournalError(Exception):
    """A journal cannot be used; one line says which, where and why."""


class Store(Protocol):
    """Where the journals of one launch are kept, one for each term."""

    def append(self, term: int, lines: bytes) -> None:
        """Keep whole lines; the first ones of a term begin its journal.

        Raises:
            OSError: they are not kept.
        """
        ...

    def terms(self) -> Sequence[int]:
        """Terms that have a journal here."""
        ...

    def read(self, term: int) -> bytes:
        """All that is kept of a term."""
        ...

    def where(self, term: int) -> str:
        """Names a journal in messages."""
        ...


@dataclass(frozen=True)
class Files:
    """One append-only file for each term of a launch.

    Attributes:
        folder: of all launches of the run.
        launch: names that are sorted by time.
    """

    folder: Path
    launch: str

    def append(self, term: int, lines: bytes) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        file = os.open(self._path(term), os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
        try:
            if os.write(file, lines) != len(lines):
                raise OSError("no space is left")
        finally:
            os.close(file)

    def terms(self) -> list[int]:
        return sorted(int(path.stem.rpartition(".")[2]) for path in self.folder.glob(f"{self.launch}.*.jsonl"))

    def read(self, term: int) -> bytes:
        return self._path(term).read_bytes()

    def where(self, term: int) -> str:
        return str(self._path(term))

    def _path(self, term: int) -> Path:
        return self.folder / f"{self.launch}.{term}.jsonl"


class Journal:
    """The journal of one controller life.

    Args:
        stores: where it is kept; none keeps it in memory alone.
        launch: which launch of the run this is.
        term: of this life.
        earlier: entries of earlier lives.
    """

    def __init__(
        self,
        stores: Sequence[Store] = (),
        launch: str = "",
        term: int = 1,
        earlier: Sequence[Entry] = (),
    ) -> None:
        self.entries: list[Entry] = list(earlier)
        self._stores = list(stores)
        self._term = term
        self._first = _line({"journal": VERSION, "launch": launch, "term": term, "time": round(time.time(), 6)})

    def write(self, record: Record) -> list[str]:
        """Append one line with the time of day; returns a warning for each store that is given up."""
        entry = {
            "time": round(time.time(), 6),
            "what": record.what,
            "generation": str(record.generation) if record.generation else None,
            **record.facts,
        }
        lines = self._first + _line(entry)
        self._first = b""
        self.entries.append(entry)
        return [trouble for store in list(self._stores) if (trouble := self._keep(store, lines))]

    def close(self) -> None:
        """Nothing more will come."""
        self._stores = []

    def _keep(self, store: Store, lines: bytes) -> str | None:
        try:
            store.append(self._term, lines)
        except OSError as error:
            # A line that is lost would leave a gap: better none than a journal that misleads.
            self._stores.remove(store)
            return f"{store.where(self._term)}: {error.strerror or error}; the journal is not kept there any more"
        return None


def read_earlier(stores: Sequence[Store], launch: str, term: int) -> tuple[list[Entry], list[str]]:
    """What the lives before ``term`` have written, each one's from the store that has most of it.

    Returns:
        Their entries, oldest first, and a warning for every journal, or part of one, that cannot be used.
    """
    found: dict[int, list[Entry]] = {}
    troubles: list[str] = []
    for store in stores:
        try:
            for earlier in (held for held in store.terms() if held < term):
                entries, torn = parse(store.read(earlier), store.where(earlier), launch)
                troubles += torn
                if len(entries) > len(found.get(earlier, ())):
                    found[earlier] = entries
        except (JournalError, OSError) as error:
            troubles.append(f"{error}; going on without it, with what the ranks report")
    return [entry for earlier in sorted(found) for entry in found[earlier]], troubles


def read(folder: Path) -> list[Entry]:
    """The entries of the newest launch in a run's folder, of all its controller lives.

    Raises:
        JournalError: there is none, or one cannot be used.
    """
    kept = folder / FOLDER
    launches = {path.name.rsplit(".", 2)[0] for path in kept.glob("*.*.jsonl")}
    if not launches:
        raise JournalError(f"{kept}: there is no journal")
    files = Files(kept, max(launches))
    return [entry for term in files.terms() for entry in parse(files.read(term), files.where(term), files.launch)[0]]


def parse(data: bytes, where: str, launch: str) -> tuple[list[Entry], list[str]]:
    """One journal.

    Returns:
        Its entries, and a warning if its last line was torn and is left out.

    Raises:
        JournalError: another version, another launch, or a line that is none, with its number.
    """
    *lines, torn = data.split(b"\n")
    troubles = [f"{where}: line {len(lines) + 1}, the last one, is torn and is left out"] if torn else []
    if not lines:
        return [], troubles
    first = _entry(lines[0], where, 1)
    if (version := first.get("journal")) != VERSION:
        raise JournalError(f"{where}: this is a journal of version {version}, version {VERSION} is read here")
    if first.get("launch") != launch:
        raise JournalError(f"{where}: it belongs to launch {first.get('launch')}, not to {launch}")
    return [_entry(line, where, number) for number, line in enumerate(lines[1:], 2)], troubles


def _entry(line: bytes, where: str, number: int) -> Entry:
    try:
        entry = json.loads(line)
    except ValueError:
        entry = None
    if not isinstance(entry, dict):
        raise JournalError(f"{where}: line {number} is no entry of a journal: the file was damaged")
    return entry


def _line(entry: Entry) -> bytes:
    return (json.dumps(entry, default=str) + "\n").encode()

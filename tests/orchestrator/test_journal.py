"""Journals: whole lines or none, one for each controller life, and nothing that cannot be read is believed."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from everstep.orchestrator.journal import FOLDER, Files, Journal, JournalError, parse, read, read_earlier
from everstep.orchestrator.machine.events import Record
from everstep.policies.world import Generation

LAUNCH = "20300101T000000-aa"


def files(path: Path) -> Files:
    return Files(path / FOLDER, LAUNCH)


def write(path: Path, term: int, *what: str) -> None:
    journal = Journal([files(path)], LAUNCH, term)
    for each in what:
        assert journal.write(Record(each, Generation(term, 1), {"rank": "0.0"})) == []


def whats(entries: object) -> list[object]:
    return [entry["what"] for entry in entries]  # type: ignore[attr-defined]


def test_what_was_written_is_read_in_the_order_of_lives(tmp_path: Path) -> None:
    for term in (1, 2, 10):
        write(tmp_path, term, f"a{term}", f"b{term}")
    assert whats(read(tmp_path)) == ["a1", "b1", "a2", "b2", "a10", "b10"]
    entries, troubles = read_earlier([files(tmp_path)], LAUNCH, 10)
    assert whats(entries) == ["a1", "b1", "a2", "b2"]
    assert troubles == []
    assert entries[2]["generation"] == "2.1"
    assert entries[2]["rank"] == "0.0"


def test_only_the_newest_launch_is_read_and_only_ones_own_is_taken_over(tmp_path: Path) -> None:
    write(tmp_path, 1, "mine")
    later = Files(tmp_path / FOLDER, "20300101T000001-bb")
    Journal([later], later.launch, 1).write(Record("later"))
    assert whats(read(tmp_path)) == ["later"]
    assert whats(read_earlier([files(tmp_path)], LAUNCH, 2)[0]) == ["mine"]
    with pytest.raises(JournalError, match="belongs to launch 20300101T000000-aa, not to other"):
        parse(files(tmp_path).read(1), "here", "other")


def test_a_torn_last_line_is_left_out_and_told(tmp_path: Path) -> None:
    write(tmp_path, 1, "a", "b", "c")
    path = tmp_path / FOLDER / f"{LAUNCH}.1.jsonl"
    whole = path.read_bytes()
    last = whole.rstrip(b"\n").rfind(b"\n") + 1
    for cut in range(last + 1, len(whole)):
        path.write_bytes(whole[:cut])
        entries, troubles = read_earlier([files(tmp_path)], LAUNCH, 2)
        assert whats(entries) == ["a", "b"]
        assert troubles == [f"{path}: line 4, the last one, is torn and is left out"]
    path.write_bytes(whole[:last])
    assert read_earlier([files(tmp_path)], LAUNCH, 2)[1] == []


def test_a_damaged_line_is_named_and_the_journal_is_not_believed(tmp_path: Path) -> None:
    write(tmp_path, 1, "a", "b", "c")
    path = tmp_path / FOLDER / f"{LAUNCH}.1.jsonl"
    lines = path.read_bytes().split(b"\n")
    for damage in (b"\x00\xff", b"[1]", b'{"what": '):
        path.write_bytes(b"\n".join([*lines[:2], damage, *lines[3:]]))
        with pytest.raises(JournalError, match="line 3 is no entry of a journal"):
            read(tmp_path)
        entries, (trouble,) = read_earlier([files(tmp_path)], LAUNCH, 2)
        assert entries == []
        assert "line 3" in trouble
        assert "going on without it" in trouble


@pytest.mark.parametrize("version", [2, "1", None])
def test_another_version_is_refused_whatever_else_is_in_it(version: object) -> None:
    data = json.dumps({"journal": version}).encode() + b"\nwhat is this\n"
    with pytest.raises(JournalError, match=f"a journal of version {version}, version 1 is read here"):
        parse(data, "here", LAUNCH)


def test_nothing_is_an_empty_journal(tmp_path: Path) -> None:
    assert parse(b"", "here", LAUNCH) == ([], [])
    assert read_earlier([files(tmp_path)], LAUNCH, 5) == ([], [])
    with pytest.raises(JournalError, match="there is no journal"):
        read(tmp_path)


@dataclass
class Kept:
    """A store in memory that may be full."""

    held: dict[int, bytes] = field(default_factory=dict)
    full: bool = False

    def append(self, term: int, lines: bytes) -> None:
        if self.full:
            raise OSError(28, "No space left on device")
        self.held[term] = self.held.get(term, b"") + lines

    def terms(self) -> list[int]:
        return sorted(self.held)

    def read(self, term: int) -> bytes:
        return self.held[term]

    def where(self, term: int) -> str:
        return f"memory {term}"


def test_a_store_that_fails_is_told_of_once_and_the_others_go_on() -> None:
    good, bad = Kept(), Kept()
    journal = Journal([bad, good], LAUNCH, 1)
    assert journal.write(Record("a")) == []
    bad.full = True
    assert journal.write(Record("b")) == ["memory 1: No space left on device; the journal is not kept there any more"]
    bad.full = False
    assert journal.write(Record("c")) == []
    assert whats(journal.entries) == ["a", "b", "c"]
    # What a store lacks is read from another one.
    assert whats(read_earlier([bad, good], LAUNCH, 2)[0]) == ["a", "b", "c"]
    assert whats(read_earlier([bad], LAUNCH, 2)[0]) == ["a"]


def test_what_earlier_lives_wrote_can_be_asked_for() -> None:
    store = Kept()
    Journal([store], LAUNCH, 1).write(Record("a"))
    entries, _ = read_earlier([store], LAUNCH, 2)
    journal = Journal([store], LAUNCH, 2, entries)
    journal.write(Record("b"))
    assert whats(journal.entries) == ["a", "b"]
    assert whats(parse(store.held[2], "here", LAUNCH)[0]) == ["b"]

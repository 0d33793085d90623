"""Whether a controller may still act."""

import tempfile
from pathlib import Path

import pytest
from everstep.actors.directory import Address, FolderDirectory
from everstep.orchestrator.tenure import Deposed, Tenure


def directory(path: Path) -> FolderDirectory:
    return FolderDirectory(str(path / "terms"))


def test_the_older_one_is_over_for_good(tmp_path: Path) -> None:
    old = Tenure(directory(tmp_path), fresh=0.0)
    assert old.term == 1
    assert old.holds()
    new = Tenure(directory(tmp_path), fresh=0.0)
    assert new.term == 2
    new.check()
    for _ in range(2):
        with pytest.raises(Deposed, match="term 1 is over"):
            old.check()
    # Nothing that comes later gives it back.
    directory(tmp_path).forget()
    assert not old.holds()


def test_an_answer_counts_for_a_moment_only(tmp_path: Path) -> None:
    hurried, careful = Tenure(directory(tmp_path / "a"), fresh=1000.0), Tenure(directory(tmp_path / "b"), fresh=0.0)
    for path in ("a", "b"):
        directory(tmp_path / path).take()
    assert hurried.holds()
    assert not careful.holds()


def test_only_the_newest_leaves_nothing(tmp_path: Path) -> None:
    old = Tenure(directory(tmp_path), fresh=0.0)
    new = Tenure(directory(tmp_path), fresh=0.0)
    old.release()
    assert directory(tmp_path).newest() == 2
    new.release()
    assert directory(tmp_path).newest() == 0


def test_who_cannot_ask_goes_on(tmp_path: Path) -> None:
    """Where the directory is out of reach nobody can take a term either."""

    class Away(FolderDirectory):
        def newest(self) -> int:
            raise OSError("out of reach")

        def take(self) -> int:
            return 1

        def publish(self, term: int, address: Address) -> None:
            raise NotImplementedError

    assert Tenure(Away(str(tmp_path)), fresh=0.0).holds()


def test_a_private_one_is_alone_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    one, other = Tenure.private(), Tenure.private()
    assert (one.term, other.term) == (1, 1)
    one.release()
    other.release()
    assert not list(tmp_path.iterdir())

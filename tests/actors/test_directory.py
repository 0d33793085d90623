"""Terms: nobody holds one that another one held, and ranks find whoever holds the newest one that listens."""

import pickle
import threading
from pathlib import Path

from everstep.actors.directory import FolderDirectory


def directory(path: Path) -> FolderDirectory:
    return FolderDirectory(str(path / "terms"))


def test_terms_count_up_from_one(tmp_path: Path) -> None:
    held = directory(tmp_path)
    assert held.newest() == 0
    assert [held.take() for _ in range(3)] == [1, 2, 3]
    assert held.newest() == 3


def test_many_who_take_a_term_at_once_get_different_ones(tmp_path: Path) -> None:
    held, taken, ready = directory(tmp_path), [], threading.Barrier(16)

    def take() -> None:
        ready.wait(10.0)
        taken.append(held.take())

    threads = [threading.Thread(target=take) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10.0)
    assert sorted(taken) == list(range(1, 17))


def test_the_newest_that_listens_is_found(tmp_path: Path) -> None:
    held = directory(tmp_path)
    assert held.controller() is None
    held.take()
    assert held.controller() is None
    held.publish(1, ("host", 7))
    held.take()
    # It does not listen yet: whoever looks for a controller finds the one before, and looks again.
    assert held.controller() == (1, ("host", 7))
    held.publish(2, ("other", 8))
    assert held.controller() == (2, ("other", 8))
    held.publish(1, ("host", 9))
    assert held.controller() == (2, ("other", 8))


def test_it_travels_and_leaves_nothing(tmp_path: Path) -> None:
    held = directory(tmp_path)
    held.take()
    held.publish(1, ("host", 7))
    assert pickle.loads(pickle.dumps(held)).controller() == (1, ("host", 7))
    held.forget()
    assert list(tmp_path.iterdir()) == []
    assert held.newest() == 0


def test_what_is_not_its_own_stays(tmp_path: Path) -> None:
    held = FolderDirectory(str(tmp_path))
    held.take()
    (tmp_path / "letters.txt").write_text("dear")
    (tmp_path / "photos").mkdir()
    held.forget()
    assert {entry.name for entry in tmp_path.iterdir()} == {"letters.txt", "photos"}

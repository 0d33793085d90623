"""The controller's view of checkpoints: a manifest when all parts of one state are there, and of no other."""

import hashlib
import threading
from pathlib import Path

import pytest
from everstep.actors.saved.manifest import folder_of
from everstep.actors.saved.storage import Storage
from everstep.actors.saving_messages import Stored
from everstep.conf.schedule import BatchSchedule
from everstep.orchestrator.checkpoints import Checkpoints
from everstep.orchestrator.machine.events import Event, Saved, Warned
from everstep.policies.retention import Marks, Undone
from everstep.policies.world import Generation


class Run:
    """Checkpoints with ranks that write parts."""

    def __init__(self, folder: Path, keep: int = 2, microbatches: object = 8) -> None:
        self.storage = Storage(str(folder))
        self.checkpoints = Checkpoints("run", str(folder), keep, BatchSchedule.of(microbatches))  # type: ignore[arg-type]
        self.told: list[Event] = []

    def part(self, step: int, place: int, parts: int = 2, number: int = 1, written: bool = True) -> None:
        data = f"{step} {number} {place}".encode()
        digest = hashlib.sha256(data).hexdigest()
        file = f"part-{place:04d}-{digest[:16]}.safetensors"
        if written:
            self.storage.write(f"{folder_of(step)}/{file}", [data])
        self.tell(Stored(f"r{place}", step, Generation(1, number), place, parts, file, len(data), digest))

    def tell(self, message: Stored) -> None:
        self.checkpoints.stored(message, {"seed": "3"}, self.told.append)

    def whole(self, step: int, number: int = 1) -> None:
        for place in range(2):
            self.part(step, place, number=number)

    def drain(self) -> None:
        """Wait until all that was told so far is done."""
        done = threading.Event()
        self.checkpoints._jobs.put(done.set)
        assert done.wait(10.0)

    def close(self) -> list[Event]:
        self.checkpoints.close(10.0)
        return self.told


def saved(step: int, *kept: int, number: int = 1) -> Saved:
    return Saved("storage", step, kept, Generation(1, number))


def newest(folder: Path, microbatches: object = 8) -> object:
    return Run(folder, microbatches=microbatches).checkpoints.newest()


def test_a_state_is_saved_when_all_parts_are(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.part(4, 1)
    assert newest(tmp_path).step == 0  # type: ignore[attr-defined]
    run.part(4, 0)
    assert run.close() == [saved(4, 4)]
    found = newest(tmp_path)
    assert (found.step, found.identity, found.refused) == (4, {"seed": "3"}, "")  # type: ignore[attr-defined]


def test_parts_of_two_generations_are_never_mixed(tmp_path: Path) -> None:
    """The group that committed the step was lost half-way; the next one commits another step and saves that."""
    run = Run(tmp_path)
    run.part(4, 0, number=1)
    run.part(4, 1, number=2)
    run.part(5, 0, number=2)
    run.part(5, 1, number=2)
    run.part(4, 0, number=2)
    assert run.close() == [saved(5, 5, number=2)]
    assert newest(tmp_path).step == 5  # type: ignore[attr-defined]


def test_older_ones_go_when_the_new_one_is_there(tmp_path: Path) -> None:
    run = Run(tmp_path, keep=2)
    for step in (2, 4, 6, 8):
        run.whole(step)
    kept = {2: (2,), 4: (2, 4), 6: (4, 6), 8: (6, 8)}
    assert run.close() == [saved(step, *left) for step, left in kept.items()]
    assert sorted(path.name for path in tmp_path.iterdir()) == [folder_of(6), folder_of(8)]


def test_a_part_that_the_controller_cannot_see(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.whole(4)
    run.part(6, 0)
    run.part(6, 1, written=False)
    whole, warned = run.close()
    assert whole == saved(4, 4)
    assert isinstance(warned, Warned)
    assert "step 6" in warned.text
    assert "is missing (do all nodes share the storage?)" in warned.text
    assert newest(tmp_path).step == 4  # type: ignore[attr-defined]


def test_a_problem_is_told_once(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for step in (2, 4):
        run.tell(Stored("r0", step, Generation(1, 1), 0, 2, problem="no space left on device"))
    (warned,) = run.close()
    assert warned == Warned("the checkpoint of step 2 is not written: no space left on device")


@pytest.mark.parametrize(
    ("microbatches", "refused"), [(8, False), ({0: 8, 4: 16}, False), (16, True), ({0: 8, 3: 16}, True)]
)
def test_the_batch_may_change_for_the_steps_to_come(tmp_path: Path, microbatches: object, refused: bool) -> None:
    run = Run(tmp_path)
    run.whole(4)
    run.close()
    found = newest(tmp_path, microbatches)
    assert ("has computed 32 microbatches in its 4 steps" in found.refused) is refused  # type: ignore[attr-defined]


def test_what_is_known_to_be_right_stays_beside_the_newest(tmp_path: Path) -> None:
    run = Run(tmp_path, keep=1)
    run.checkpoints.keep(Marks((3,)))
    for step in (2, 4, 6):
        run.whole(step)
    assert run.close()[-1] == saved(6, 2, 6)


def test_what_is_wrong_is_dropped_and_not_taken_when_it_comes_late(tmp_path: Path) -> None:
    """Everybody went back: these steps are saved once more, by another group."""
    run = Run(tmp_path, keep=9)
    for step in (2, 4, 6):
        run.whole(step)
    run.drain()
    run.part(8, 0, number=1)
    run.checkpoints.undo(Undone(2, Generation(1, 2)), lambda _: None)
    run.part(8, 1, number=1)
    run.part(4, 0, number=2)
    run.part(4, 1, number=2)
    assert run.close()[-1] == saved(4, 2, 4, number=2)
    assert newest(tmp_path).step == 4  # type: ignore[attr-defined]
    later = Run(tmp_path, keep=9)
    later.checkpoints.undo_now(Undone(2, Generation(1, 3)))
    assert later.checkpoints.known() == saved(2, 2)

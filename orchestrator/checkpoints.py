"""Checkpoints of a run as its controller sees them: all parts are written, so the manifest is; the newest is found."""

import threading
from collections.abc import Callable, Mapping
from functools import partial
from queue import SimpleQueue

from ..actors.saved.catalogue import Catalogue
from ..actors.saved.manifest import Manifest, Part
from ..actors.saved.sources import STORAGE
from ..actors.saved.storage import PATIENCE_S, Storage, shown
from ..actors.saving_messages import Stored, Unreadable
from ..conf.errors import SavedStateError
from ..conf.schedule import BatchSchedule
from ..policies.retention import Marks, Undone
from ..policies.world import Generation
from .machine.events import Event, Found, Lost, Saved, Warned

FOLDER = "checkpoints"
SOURCE = STORAGE
# A fact that differs from step to step, so that a schedule may be changed for the steps to come.
_BEFORE = "microbatches so far"


class Checkpoints:
    """Publishes manifests on a thread of its own: nothing waits for storage.

    Args:
        run: its name.
        where: the folder of checkpoints, as ``Storage`` reads it.
        keep: how many stay.
        schedule: microbatches of every step.
        patience: seconds that the storage may take for one call.
    """

    def __init__(self, run: str, where: str, keep: int, schedule: BatchSchedule, patience: float = PATIENCE_S) -> None:
        self._run = run
        self._where = where
        self._catalogue = Catalogue(Storage(where, patience))
        self._keep = keep
        self._patience = patience
        self._schedule = schedule
        self._parts: dict[tuple[int, Generation], dict[int, Stored]] = {}
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        # A daemon: storage that hangs must not hold up the end of this process.
        self._thread = threading.Thread(target=self._work, name="everstep-checkpoints", daemon=True)
        self._thread.start()
        self._damaged: frozenset[int] = frozenset()
        self._published = 0
        self._undone: Undone | None = None
        self._marks = Marks()
        self._problems: set[str] = set()

    def newest(self) -> Found | None:
        """What a run of this name goes on from, and why not from something newer; None for a new run."""
        try:
            self._catalogue.refuse_others(self._run)
            found = self._catalogue.newest()
        except SavedStateError as error:
            text = f"run {self._run!r} cannot use the checkpoints in {shown(self._where)}: {error}"
            return Found(SOURCE, 0, refused=f"{text}; nothing was touched")
        self._damaged = frozenset(step for step, _ in found.skipped)
        skipped = tuple(f"the checkpoint of step {step} is not taken: {why}" for step, why in found.skipped)
        held = found.manifest
        if held is None:
            return Found(SOURCE, 0, skipped=skipped) if skipped else None
        self._published = held.step
        identity = dict(held.identity)
        before, now = identity.pop(_BEFORE, None), str(self._schedule.before(held.step))
        refused = ""
        if before is not None and before != now:
            refused = (
                f"run {self._run!r} has computed {before} microbatches in its {held.step} steps, with "
                f"elastic.microbatches_per_step={self._schedule} it would have been {now}: choose another name for "
                "another run"
            )
        return Found(SOURCE, held.step, identity, skipped, refused)

    def stored(
        self,
        message: Stored,
        identity: Mapping[str, str],
        tell: Callable[[Event], None],
        may: Callable[[], bool] = lambda: True,
    ) -> None:
        """A rank has written its part, or could not.

        Args:
            identity: of model, data set and seed.
            tell: takes events, from any thread.
            may: whether this controller still holds the newest term; asked before anything is published.
        """
        if self._undone is not None and self._undone.covers(message.step, message.generation):
            return
        key = (message.step, message.generation)
        if message.problem:
            # What never becomes whole is forgotten with the next one that does.
            if message.problem not in self._problems:
                self._problems.add(message.problem)
                tell(Warned(f"the checkpoint of step {message.step} is not written: {message.problem}"))
            return
        parts = self._parts.setdefault(key, {})
        parts[message.part] = message
        if len(parts) < message.parts:
            return
        self._parts = {other: held for other, held in self._parts.items() if other[0] > message.step}
        if message.step < self._published:
            return
        manifest = Manifest(
            self._run,
            message.step,
            str(message.generation),
            message.parts,
            tuple(Part(held.file, held.bytes, held.sha256) for _, held in sorted(parts.items())),
            {**identity, _BEFORE: str(self._schedule.before(message.step))},
        )
        self._published = message.step
        self._jobs.put(partial(self._publish, manifest, tell, may))

    def unreadable(self, message: Unreadable, tell: Callable[[Event], None]) -> None:
        """A rank cannot read what everybody was to go back to: look for an older one."""
        if message.step not in self._damaged:
            self._damaged |= {message.step}
            self._jobs.put(partial(self._look_again, message, tell))

    def known(self) -> Saved | None:
        """For a controller that takes over: what is there, without reading all of it."""
        try:
            held = self._catalogue.newest(thorough=False).manifest
        except SavedStateError:
            return None
        if held is None:
            return None
        return Saved(SOURCE, held.step, tuple(sorted(self._catalogue.steps())), Generation.read(held.generation))

    def keep(self, marks: Marks) -> None:
        """Which checkpoints stay beside the newest ones, from the next one on."""
        self._marks = marks

    def undo(self, undone: Undone, tell: Callable[[Event], None]) -> None:
        """Drop what is wrong, and take none of it any more."""
        self._undone = undone
        self._parts = {key: held for key, held in self._parts.items() if not undone.covers(*key)}
        self._published = min(self._published, undone.step)
        self._jobs.put(partial(self._drop_undone, undone, tell))

    def undo_now(self, undone: Undone | None) -> None:
        """The same, and wait: for a controller that takes over from one that may not have come to it."""
        if undone is None:
            return
        self.undo(undone, lambda _: None)
        done = threading.Event()
        self._jobs.put(done.set)
        done.wait(self._patience)

    def close(self, timeout: float) -> bool:
        """Wait for what is under way, at most ``timeout`` seconds; returns whether it is done."""
        self._jobs.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def _look_again(self, message: Unreadable, tell: Callable[[Event], None]) -> None:
        try:
            held = self._catalogue.newest().manifest
        except SavedStateError:
            held = None
        # What is whole as seen from here may still not be readable there.
        older = held.step if held and held.step < message.step else None
        tell(Lost(message.source, message.step, older, message.problem))

    def _drop_undone(self, undone: Undone, tell: Callable[[Event], None]) -> None:
        try:
            self._catalogue.undo(undone)
        except Exception as error:
            tell(Warned(f"checkpoints after step {undone.step} are wrong and could not be dropped: {error}"))

    def _publish(self, manifest: Manifest, tell: Callable[[Event], None], may: Callable[[], bool]) -> None:
        generation = Generation.read(manifest.generation)
        late = self._undone is not None and self._undone.covers(manifest.step, generation)
        if late or not may():
            return
        try:
            self._catalogue.publish(manifest)
        except Exception as error:
            hint = "do all nodes share the storage?"
            tell(Warned(f"the checkpoint of step {manifest.step} is not written: {error} ({hint})"))
            return
        self._damaged -= {manifest.step}
        kept: tuple[int, ...] | None = None
        try:
            dropped = self._catalogue.retain(self._keep, manifest, self._damaged, self._marks)
            self._damaged -= set(dropped)
            kept = tuple(sorted(set(self._catalogue.steps()) - self._damaged))
        except Exception as error:
            tell(Warned(f"older checkpoints could not be dropped: {error}"))
        tell(Saved(SOURCE, manifest.step, kept, generation))

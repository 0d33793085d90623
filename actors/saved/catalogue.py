"""All saved states of a run in one storage: find the newest that is whole, publish another, drop the oldest."""

import hashlib
from dataclasses import dataclass

from ...conf.errors import NewerFormatError, SavedStateError
from ...policies.retention import Marks, Undone, staying
from ...policies.world import Generation
from .manifest import FILE, Manifest, folder_of, step_of
from .storage import Storage

_PIECE = 1 << 24
_NO_MARKS = Marks()


@dataclass(frozen=True)
class Found:
    """What a search came to.

    Attributes:
        manifest: of the newest whole state; None if there is none.
        skipped: by step, newest first, why a newer one was not taken.
    """

    manifest: Manifest | None
    skipped: tuple[tuple[int, str], ...] = ()


class Catalogue:
    """Saved states in folders of their own, each with a manifest that was written last.

    Args:
        storage: where they lie.

    Raises, in every method that does not say otherwise:
        SavedStateError: the storage cannot be read or written.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def steps(self) -> list[int]:
        """Of all states with a manifest, newest first; they need not be whole."""
        return [step for step in self._folders() if FILE in self._files(step)]

    def manifest(self, step: int) -> Manifest:
        """The manifest of a state.

        Raises:
            SavedStateError: it is damaged, or there is none.
        """
        held = Manifest.decode(self._storage.read(f"{folder_of(step)}/{FILE}"))
        if held.step != step:
            raise SavedStateError(f"its manifest is that of step {held.step}")
        return held

    def check(self, step: int, thorough: bool = True) -> Manifest:
        """Read a whole state once; or only look whether all of it is there, as a rank that restores it reads it anyway.

        Raises:
            SavedStateError: it is not whole, and why.
        """
        manifest = self.manifest(step)
        self._refuse_incomplete(manifest)
        for part in manifest.parts if thorough else ():
            memory = bytearray(part.bytes)
            self._storage.read_into(f"{folder_of(step)}/{part.file}", memoryview(memory))
            if hashlib.sha256(memory).hexdigest() != part.sha256:
                raise SavedStateError(f"{part.file} is damaged: its SHA-256 is another one")
        return manifest

    def newest(self, thorough: bool = True) -> Found:
        """The newest whole state; nothing that is wrong with a newer one hides it."""
        skipped: list[tuple[int, str]] = []
        for step in self._folders():
            if FILE not in self._files(step):
                skipped.append((step, "it has no manifest: it was never completed"))
                continue
            try:
                return Found(self.check(step, thorough), tuple(skipped))
            except SavedStateError as error:
                skipped.append((step, str(error)))
        return Found(None, tuple(skipped))

    def refuse_others(self, run: str) -> None:
        """Make sure that nobody else's states lie here, who would lose them.

        Raises:
            SavedStateError: another run's do, or those of a newer version of everstep.
        """
        for step in self.steps():
            try:
                held = self.manifest(step)
            except NewerFormatError as error:
                raise SavedStateError(f"the state of step {step} is of a newer version of everstep: {error}") from None
            except SavedStateError:
                # Whatever is damaged says nothing.
                continue
            if held.run != run:
                raise SavedStateError(f"they belong to another run, {held.run!r}")

    def publish(self, manifest: Manifest) -> None:
        """All parts are written: make them a saved state.

        Raises:
            SavedStateError: a part cannot be seen from here, or has another size; or as above.
        """
        self._refuse_incomplete(manifest)
        self._storage.write(f"{folder_of(manifest.step)}/{FILE}", [manifest.encode()])

    def retain(
        self, keep: int, newest: Manifest, damaged: frozenset[int] = frozenset(), marks: Marks = _NO_MARKS
    ) -> tuple[int, ...]:
        """Drop what is not wanted any more, once ``newest`` is published: it is the last to be dropped of all.

        Args:
            keep: how many of the newest states stay.
            damaged: those known not to be whole; they do not count.
            marks: which others stay.

        Returns:
            The steps that were dropped.
        """
        whole = [step for step in self.steps() if step <= newest.step and step not in damaged]
        stay = {newest.step, *staying(whole, keep, marks)}
        dropped = []
        for step in self._folders():
            # What lies above may be being written.
            if step < newest.step and step not in stay:
                # Without its manifest it cannot be taken for a whole one while its parts go.
                self._storage.delete(f"{folder_of(step)}/{FILE}")
                self._storage.delete_folder(folder_of(step))
                dropped.append(step)
        wanted = {FILE, *(part.file for part in newest.parts)}
        for name in self._files(newest.step).keys() - wanted:
            self._storage.delete(f"{folder_of(newest.step)}/{name}")
        return tuple(dropped)

    def undo(self, undone: Undone) -> tuple[int, ...]:
        """Drop the states that are wrong.

        Returns:
            The steps that were dropped.
        """
        dropped = []
        for later in [each for each in self.steps() if each > undone.step]:
            try:
                manifest = self.manifest(later)
            except SavedStateError:
                # Nobody can go on from it in any case.
                continue
            if not undone.covers(later, Generation.read(manifest.generation)):
                continue
            # The same step may be being saved once more, in the same folder.
            for file in (FILE, *(part.file for part in manifest.parts)):
                self._storage.delete(f"{folder_of(later)}/{file}")
            dropped.append(later)
        return tuple(dropped)

    def _refuse_incomplete(self, manifest: Manifest) -> None:
        there = self._files(manifest.step)
        for part in manifest.parts:
            if part.file not in there:
                raise SavedStateError(f"{part.file} is missing")
            if there[part.file] != part.bytes:
                raise SavedStateError(f"{part.file} has {there[part.file]} bytes instead of {part.bytes}")

    def _folders(self) -> list[int]:
        found = (step_of(entry.name) for entry in self._storage.entries() if entry.bytes is None)
        return sorted((step for step in found if step is not None), reverse=True)

    def _files(self, step: int) -> dict[str, int]:
        entries = self._storage.entries(folder_of(step))
        return {entry.name: entry.bytes for entry in entries if entry.bytes is not None}

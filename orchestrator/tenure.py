"""The right of one controller life to act: it holds the newest term, or it must not touch anything any more."""

import contextlib
import tempfile
import time

from ..actors.directory import Address, Directory, FolderDirectory

FRESH_S = 0.05


class Deposed(Exception):
    """A newer controller has taken over: leave ranks, results and files alone."""


class Tenure:
    """A term of this process. It ends when a newer one is taken, and never comes back.

    Args:
        directory: where terms are taken.
        fresh: seconds for which an answer counts; longer pauses of this process make it stale.
    """

    def __init__(self, directory: Directory, fresh: float = FRESH_S) -> None:
        self.directory = directory
        self.term = directory.take()
        self._fresh = fresh
        self._asked = time.monotonic()
        self._held = True

    @classmethod
    def private(cls) -> "Tenure":
        """The first term of a directory that nobody else knows."""
        return cls(FolderDirectory(tempfile.mkdtemp(prefix="everstep-")))

    @property
    def first(self) -> bool:
        """Whether no controller life came before this one."""
        return self.term == 1

    def holds(self) -> bool:
        """Whether no newer term was taken; asked anew after ``fresh`` seconds. May block on the directory."""
        now = time.monotonic()
        if self._held and now - self._asked > self._fresh:
            # Where the directory is out of reach nobody can take a term either.
            with contextlib.suppress(OSError):
                self._held = self.directory.newest() == self.term
            self._asked = now
        return self._held

    def check(self) -> None:
        """Before anything that cannot be taken back.

        Raises:
            Deposed: a newer term was taken.
        """
        if not self.holds():
            raise Deposed(f"term {self.term} is over: a newer controller has taken over")

    def publish(self, address: Address) -> None:
        """Say where this controller listens."""
        self.directory.publish(self.term, address)

    def release(self) -> None:
        """The run is over: forget all of its terms, if this is still the newest one."""
        if self.holds():
            self.directory.forget()

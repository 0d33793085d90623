"""Parts of snapshots that a rank has to give: memory that is not given yet, or that somebody reads, stays still."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ..node.vault_messages import Offered, PartName


class Offers:
    """What lies ready for vaults. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._held: dict[PartName, tuple[Offered, memoryview]] = {}
        self._lent: dict[PartName, int] = {}
        self._given: set[PartName] = set()
        self._closed = False

    @property
    def standing(self) -> list[Offered]:
        """All that is offered and not given."""
        with self._changed:
            return [offered for name, (offered, _) in self._held.items() if name not in self._given]

    @property
    def closed(self) -> bool:
        """Whether nobody wants any more."""
        return self._closed

    def put(self, offered: Offered, memory: memoryview) -> None:
        """Have this to give."""
        with self._changed:
            self._held[offered.part.name] = offered, memory

    @contextmanager
    def lend(self, name: PartName) -> Iterator[memoryview | None]:
        """What lies under a name, None if nothing does."""
        with self._changed:
            _, memory = self._held.get(name, (None, None))
            self._lent[name] = self._lent.get(name, 0) + 1
        try:
            yield memory
        finally:
            with self._changed:
                self._lent[name] -= 1
                if not self._lent[name]:
                    del self._lent[name]
                self._changed.notify_all()

    def given(self, name: PartName | None) -> None:
        """Somebody has got this, or nobody will; without a name, nobody will take anything any more."""
        with self._changed:
            self._closed = self._closed or name is None
            self._given.update(self._held if name is None else self._held.keys() & {name})
            self._changed.notify_all()

    def await_given(self, name: PartName) -> None:
        """Wait until this need not be held any longer, and nobody reads it; then it is gone."""
        with self._changed:
            # Ended by ``given``: for every offer a controller finds somebody who takes it, or says that nobody will.
            self._changed.wait_for(lambda: name in self._given or self._closed)
            del self._held[name]
            self._given.discard(name)
            # Ended by the time-out of whoever reads it.
            self._changed.wait_for(lambda: name not in self._lent)

"""What a vault holds: parts of snapshots, and manifests of those that are whole. No I/O, and no transport."""

import threading
from collections.abc import Iterable
from typing import Any

from ...conf.errors import VaultFullError
from .vault_messages import Manifest, Part, PartName

_MIB = 2**20


class Vault:
    """Parts by name. All methods may be called from any thread.

    Args:
        budget: most bytes that it may hold, with those that are on their way.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._lock = threading.Lock()
        self._parts: dict[PartName, Part] = {}
        self._handles: dict[PartName, Any] = {}
        self._coming: dict[PartName, Part] = {}
        self._manifests: dict[int, Manifest] = {}

    @property
    def parts(self) -> tuple[Part, ...]:
        """All that are here."""
        with self._lock:
            return tuple(part for _, part in sorted(self._parts.items()))

    @property
    def manifests(self) -> tuple[Manifest, ...]:
        """Of all snapshots that are known to be whole, oldest first."""
        with self._lock:
            return tuple(manifest for _, manifest in sorted(self._manifests.items()))

    @property
    def bytes(self) -> int:
        """Held, or on their way."""
        return sum(part.bytes for held in (self._parts, self._coming) for part in held.values())

    def admit(self, part: Part) -> bool:
        """Make room for a part that is about to come; returns whether it is to come: it may be here already.

        Raises:
            VaultFullError: it does not fit.
        """
        with self._lock:
            if part.name in self._parts or part.name in self._coming:
                return False
            if self.bytes + part.bytes > self.budget:
                raise VaultFullError(
                    f"{part.name} has {part.bytes / _MIB:.1f} MiB, {self.bytes / _MIB:.1f} of {self.budget / _MIB:.1f} "
                    "MiB are in use"
                )
            self._coming[part.name] = part
            return True

    def put(self, part: Part, handle: Any) -> bool:
        """It has come; ``handle`` is where its bytes are. Returns whether it is still wanted."""
        with self._lock:
            if self._coming.pop(part.name, None) is None:
                return False
            self._parts[part.name] = part
            self._handles[part.name] = handle
            return True

    def fail(self, name: PartName) -> None:
        """It will not come."""
        with self._lock:
            self._coming.pop(name, None)

    def get(self, name: PartName) -> Any | None:
        """The handle of a part, None if it is not here."""
        with self._lock:
            return self._handles.get(name)

    def commit(self, manifests: Iterable[Manifest]) -> None:
        """These snapshots are whole and stay. Others up to the newest of them go, also what never became whole."""
        with self._lock:
            self._manifests = {manifest.step: manifest for manifest in manifests}
            stay = {part.name for held in self._manifests.values() for part in held.parts}
            newest = max(self._manifests, default=0)
            self._drop(name for name in self._parts if name not in stay and name.step <= newest)

    def forget(self, names: Iterable[PartName]) -> None:
        """Drop these, and no snapshot of which they are a part is whole any more."""
        gone = set(names)
        with self._lock:
            self._drop(gone)
            self._manifests = {
                step: held
                for step, held in self._manifests.items()
                if not any(part.name in gone for part in held.parts)
            }

    def _drop(self, names: Iterable[PartName]) -> None:
        for name in tuple(names):
            self._parts.pop(name, None)
            self._handles.pop(name, None)
            self._coming.pop(name, None)

"""Parts of checkpoints go to storage, and the controller hears of each that is durable."""

import hashlib
import secrets
from collections.abc import Callable

from ..saved.manifest import folder_of
from ..saved.storage import Storage
from ..saving_messages import Stored
from .snapshots import Share


class ToStorage:
    """Writes parts.

    Args:
        incarnation: of this rank.
        storage: where checkpoints lie.
        send: to the controller.
    """

    closed = False

    def __init__(self, incarnation: str, storage: Storage, send: Callable[[Stored], None]) -> None:
        self._incarnation = incarnation
        self._storage = storage
        self._send = send

    def deliver(self, share: Share, memory: memoryview) -> None:
        """Write a part; it is durable when this returns.

        Raises:
            SavedStateError: the storage does not take it.
        """
        digest = hashlib.sha256(memory).hexdigest()
        # Named for what is in it and for this attempt: nothing can ever change what lies under a name that a manifest
        # knows, not even the first half of the same bytes.
        file = f"part-{share.place:04d}-{digest[:16]}-{secrets.token_hex(4)}.safetensors"
        self._storage.write(f"{folder_of(share.step)}/{file}", [memory])
        self._say(share, file=file, bytes=memory.nbytes, sha256=digest)

    def give_up(self, share: Share, problem: str) -> None:
        """Tell why it is not written."""
        self._say(share, problem=problem)

    def _say(self, share: Share, **facts: object) -> None:
        self._send(Stored(self._incarnation, share.step, share.generation, share.place, share.parts, **facts))  # type: ignore[arg-type]

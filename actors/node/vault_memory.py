"""Where the bytes of a vault lie: in Ray's object store, owned by the vault, or in the memory of its process."""

from collections.abc import Mapping
from typing import Any, Protocol

import psutil


class Memory(Protocol):
    """Holds bytes, and lets go of them with the last reference to their handle."""

    def scratch(self, count: int) -> memoryview:
        """Memory for so many bytes that are on their way."""
        ...

    def keep(self, received: memoryview) -> Any:
        """Hold what has come into ``scratch``; returns its handle."""
        ...

    def view(self, handle: Any) -> memoryview:
        """The bytes, which nobody may change."""
        ...

    def room(self) -> int:
        """Bytes that are free."""
        ...


class Heap:
    """The memory of this process."""

    def __init__(self) -> None:
        import numpy

        self._numpy = numpy

    def scratch(self, count: int) -> memoryview:
        # Unlike a bytearray it is not filled with zeros first.
        held: memoryview = self._numpy.empty(count, dtype=self._numpy.uint8).data
        return held

    def keep(self, received: memoryview) -> Any:
        return received

    def view(self, handle: Any) -> memoryview:
        return memoryview(handle).toreadonly()

    def room(self) -> int:
        # The other half is for those who train.
        return int(psutil.virtual_memory().available // 2)


class ObjectStore:
    """Ray's object store on this node. Whoever puts an object owns it: it ends with this actor, not with a rank."""

    def __init__(self) -> None:
        import numpy
        import ray

        self._ray, self._numpy = ray, numpy
        # Cold memory is several times slower; there is one transfer at a time.
        self._memory = bytearray()

    def scratch(self, count: int) -> memoryview:
        if len(self._memory) < count:
            self._memory = bytearray(count)
        return memoryview(self._memory)[:count]

    def keep(self, received: memoryview) -> Any:
        return self._ray.put(self._numpy.frombuffer(received, dtype=self._numpy.uint8))

    def view(self, handle: Any) -> memoryview:
        # On this node it is read where it lies.
        return memoryview(self._ray.get(handle))

    def room(self) -> int:
        here = self._ray.get_runtime_context().get_node_id()
        return next((store_room(node) for node in self._ray.nodes() if node["NodeID"] == here), 0)


def store_room(node: Mapping[str, Any]) -> int:
    """Bytes that are free in the object store of a node, as Ray lists it; 0 if it does not answer."""
    from ray._private.internal_api import node_stats

    try:
        stats = node_stats(node["NodeManagerAddress"], node["NodeManagerPort"], include_memory_info=False).store_stats
    except Exception:
        return 0
    return int(stats.object_store_bytes_avail - stats.object_store_bytes_used)

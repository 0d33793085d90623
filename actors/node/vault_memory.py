"""Where the bytes of a vault lie: in Ray's object store, owned by the vault, or in the memory of its process."""

from typing import Any, Protocol


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

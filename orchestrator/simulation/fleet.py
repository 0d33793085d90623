"""The simulated machines: which rank lives in which slot, and which slots can be used when."""

import heapq
from collections.abc import Iterable

from .failures import Failure, What


class Fleet:
    """Slots on nodes in racks.

    Args:
        nodes: how many.
        ranks_per_node: slots of each.
        nodes_per_rack: nodes that are lost together with a rack.
    """

    def __init__(self, nodes: int, ranks_per_node: int, nodes_per_rack: int) -> None:
        self.nodes = nodes
        self._ranks_per_node = ranks_per_node
        self._nodes_per_rack = nodes_per_rack
        self.slots: dict[str, int] = {}
        self._living: dict[int, str] = {}
        self._free = list(range(nodes * ranks_per_node))
        # (when, slot) of those that are being repaired; a slot that is hit again is repaired anew.
        self._repairs: list[tuple[float, int]] = []
        self._broken: dict[int, float] = {}
        self.changed = 0.0
        self.gpu_seconds = 0.0

    @property
    def alive(self) -> int:
        """Ranks that hold a slot."""
        return len(self.slots)

    def node_of(self, slot: int) -> str:
        """The name of the node of a slot."""
        return f"node{slot // self._ranks_per_node}"

    def name_of(self, slot: int) -> str | None:
        """Who lives there."""
        return self._living.get(slot)

    def place(self, incarnation: str, now: float, avoid: Iterable[str] = ()) -> int | None:
        """Give the lowest usable slot to a rank; None if there is none."""
        self._repaired(now)
        shunned = set(avoid)
        passed: list[int] = []
        found = None
        while self._free and found is None:
            slot = heapq.heappop(self._free)
            if slot in self._broken or slot in self._living:
                continue
            if self.node_of(slot) in shunned:
                passed.append(slot)
            else:
                found = slot
        for slot in passed:
            heapq.heappush(self._free, slot)
        if found is not None:
            self._count(now)
            self.slots[incarnation] = found
            self._living[found] = incarnation
        return found

    def free(self, now: float) -> int:
        """Usable slots that nobody holds."""
        self._repaired(now)
        self._free = sorted({slot for slot in self._free if slot not in self._broken and slot not in self._living})
        return len(self._free)

    def next_repair(self) -> float | None:
        """When the next slot comes back."""
        while self._repairs and self._broken.get(self._repairs[0][1]) != self._repairs[0][0]:
            heapq.heappop(self._repairs)
        return self._repairs[0][0] if self._repairs else None

    def release(self, incarnation: str, now: float) -> None:
        """A rank has left its slot, which can be used at once."""
        if incarnation in self.slots:
            self._count(now)
            slot = self.slots.pop(incarnation)
            del self._living[slot]
            heapq.heappush(self._free, slot)

    def hit(self, failure: Failure) -> list[str]:
        """Break what a failure hits; who lived there."""
        slots = self.hit_by(failure)
        ended = [self._living[slot] for slot in slots if slot in self._living]
        for incarnation in ended:
            self.release(incarnation, failure.at)
        for slot in slots:
            back = float("inf") if failure.repair is None else failure.at + failure.repair
            if back > failure.at:
                self._broken[slot] = max(back, self._broken.get(slot, back))
                if self._broken[slot] < float("inf"):
                    heapq.heappush(self._repairs, (self._broken[slot], slot))
        return ended

    def hit_by(self, failure: Failure) -> range:
        """Slots that a failure breaks."""
        size = self._ranks_per_node
        total = self.nodes * size
        if failure.what is What.RACK:
            size *= self._nodes_per_rack
        elif failure.what is not What.NODE:
            size = 1
        return range(failure.target * size, min(total, (failure.target + 1) * size))

    def count(self, now: float) -> float:
        """GPU-seconds that living ranks have held their slots for."""
        self._count(now)
        return self.gpu_seconds

    def _repaired(self, now: float) -> None:
        while self._repairs and self._repairs[0][0] <= now:
            when, slot = heapq.heappop(self._repairs)
            if self._broken.get(slot) == when:
                del self._broken[slot]
                heapq.heappush(self._free, slot)

    def _count(self, now: float) -> None:
        self.gpu_seconds += (now - self.changed) * len(self.slots)
        self.changed = now

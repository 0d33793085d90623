"""The state between two steps, copied off the path of training and delivered, to storage or vaults, by another thread.

From the end of a step until the next optimizer step nothing changes the state, so it is copied while the next step
computes. All ranks hold the same, so each saves a part; who saves what follows from the group that committed the step.
There are two buffers: while one is delivered the other one can be filled. If some rank has none free, which the census
of a step says, all of them save the next step for which that is not so: training waits for a running copy, never for
storage or for vaults.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Protocol

import torch
from torch import Tensor

from ...conf.chaos import FaultPoint
from ...conf.errors import EverstepError
from ...policies.world import Generation, World
from ..faults import Chaos
from .cadence import Cadence
from .census import Wish
from .parts import Packed, packed, portion
from .portable import State

BUFFERS = 2
_NONE = Wish()


@dataclass(frozen=True)
class Saved:
    """What a saved state holds.

    Attributes:
        step: optimizer steps taken.
        state: as it is between that step and the next.
        loss: of the last step.
        streams: random streams as they stood then.
    """

    step: int
    state: State
    loss: float
    streams: Mapping[str, Any]


@dataclass(frozen=True)
class Share:
    """What this rank saves of the state after ``step`` steps, in ``generation``: part ``place`` of ``parts``."""

    step: int
    generation: Generation
    place: int
    parts: int


class Delivery(Protocol):
    """Where parts go; called on threads of their own."""

    @property
    def closed(self) -> bool:
        """Whether nothing is taken any more."""
        ...

    def deliver(self, share: Share, memory: memoryview) -> None:
        """Have it there; ``memory`` is used for something else as soon as this returns. What it raises is told of."""
        ...

    def give_up(self, share: Share, problem: str) -> None:
        """It will not come."""
        ...


@dataclass
class _Job:
    """One part on its way.

    Attributes:
        taken: the live state; None when it is not needed any more.
        ready: on the device, when the state is what it is to be.
        copied: set when the live tensors are not needed any more, whatever came of it.
        memory: the part as a file, once it is copied.
    """

    share: Share
    taken: Packed | None
    buffer: "_Buffer"
    ready: Any
    copied: threading.Event
    memory: Tensor | None = None


class _Buffer:
    """Host memory that is used again and again."""

    def __init__(self, pinned: bool) -> None:
        self._pinned = pinned
        self._memory = torch.empty(0, dtype=torch.uint8)

    def of(self, count: int) -> Tensor:
        """So many bytes of it."""
        if self._memory.numel() < count:
            self._memory = torch.empty(0, dtype=torch.uint8)
            # Parts differ a little from step to step; what is never written to takes no memory.
            self._memory = torch.empty(count + count // 4, dtype=torch.uint8, pin_memory=self._pinned)
        return self._memory[:count]


class Snapshots:
    """Saves what this rank owes of every state that is due.

    Args:
        incarnation: of this rank.
        delivery: where they go.
        every: steps from one to the next; None for what is best by what it costs.
        device: where the state lives.
        chaos: planned faults.
        name: of what is saved, in metrics.
        ends: whether the last state is saved in any case.
        tell: is told, on the first member, when another interval holds, and why.

    Attributes:
        cadence: how often.
        waited: seconds for which training stood still for copies, in all.
        taken: seconds that it took to begin them, in all.
        longest: seconds that training stood still for one of them, at most.
        copying: seconds that the copies took, beside the training.
        begun: how many were begun; ``copied`` is the bytes of this rank's parts of them.
        put_off: steps for which something was due that some rank had no buffer for.
    """

    def __init__(
        self,
        incarnation: str,
        delivery: Delivery,
        every: int | None,
        device: torch.device,
        chaos: Chaos,
        name: str = "snapshot",
        ends: bool = True,
        tell: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self._incarnation = incarnation
        self._delivery = delivery
        self.cadence = Cadence(every)
        self._tell = tell
        self._step = 0
        self._device = device
        self._chaos = chaos
        self._name = name
        self._ends = ends
        self._free = [_Buffer(device.type == "cuda") for _ in range(BUFFERS)]
        self._changed = threading.Condition()
        self._copies: SimpleQueue[_Job] = SimpleQueue()
        self._deliveries: SimpleQueue[_Job] = SimpleQueue()
        self._running: _Job | None = None
        self._generation: Generation | None = None
        self._started = False
        self.waited = self.taken = self.copying = self.longest = self._beginning = 0.0
        self._owed = False
        self.put_off = self.begun = self.copied = 0

    @property
    def metrics(self) -> dict[str, float]:
        """What saving has cost this rank."""
        name = self._name
        return {
            f"{name}s": float(self.begun),
            f"{name}s_put_off": float(self.put_off),
            f"{name}_every": float(self.cadence.every),
            f"{name}_begin_s": self.taken,
            f"{name}_wait_s": self.waited,
            f"{name}_longest_block_s": self.longest,
            f"{name}_copy_s": self.copying,
            f"{name}_bytes": float(self.copied),
        }

    def warm(self, count: int) -> None:
        """Expect parts of so many bytes: memory that was never written to takes ten times as long to fill.

        Nothing is saved until that is done, by a thread of its own.
        """
        with self._changed:
            buffers, self._free = self._free, []
        threading.Thread(
            target=self._warm, args=(buffers, count), name=f"everstep-{self._name}_warm", daemon=True
        ).start()

    # --- training thread

    def full(self) -> bool:
        """Whether this rank could not save anything now. Only the training thread takes buffers: a no stays one."""
        with self._changed:
            return not self._free or self._delivery.closed

    def wish(self) -> Wish:
        """What this rank says of it in the census of a step."""
        spent = self.taken + self.waited + self.copying
        return Wish(self.full(), self.cadence.wish(self._step, self.begun, spent))

    def due(self, step: int, last: bool, world: World, wish: Wish = _NONE) -> bool:
        """Whether the state after ``step`` steps is to be saved; the same on all members of the world.

        Those before may have been torn when the world changed, so the first step of another one is saved, too.

        Args:
            wish: of all members, as the census has it; if some have no room, a later one is saved, but for the last.
        """
        generation = world.generation
        anew = generation != self._generation and (self._generation is not None or generation.number > 1)
        self._generation, self._step = generation, step
        reason = self.cadence.agree(wish.every)
        if reason and world.incarnations[0] == self._incarnation:
            self._tell(reason)
        last = last and self._ends
        self._owed = self._owed or last or anew or step % self.cadence.every == 0
        if self._owed and wish.full and not last:
            self.put_off += 1
            return False
        owed, self._owed = self._owed, False
        return owed

    def take(self, step: int, world: World, read: Callable[[], Saved], patience: float = 0.0) -> None:
        """Begin to save the state after ``step`` steps.

        Args:
            world: that committed the last of them.
            read: the state, as live tensors.
            patience: seconds to wait for a buffer; without one nothing is saved.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: bool(self._free), patience):
                return
            buffer = self._free.pop()
        began = time.monotonic()
        place = world.incarnations.index(self._incarnation)
        taken = packed(read())
        ready = None
        if self._device.type == "cuda":
            ready = torch.cuda.Event()
            ready.record()
        self._start()
        parts = len(world.members)
        share = Share(step, world.generation, place, parts)
        self._running = _Job(share, taken, buffer, ready, threading.Event())
        self._copies.put(self._running)
        self.begun += 1
        self._beginning = time.monotonic() - began
        self.taken += self._beginning

    def settle(self) -> None:
        """Wait until nothing reads the state any more: it is about to be changed."""
        if self._running is None:
            return
        began = time.monotonic()
        # Ended by the copying thread, which sets it whatever happens.
        self._running.copied.wait()
        self._running = None
        waited = time.monotonic() - began
        self.waited += waited
        self.longest = max(self.longest, self._beginning + waited)

    def finish(self, timeout: float) -> bool:
        """Wait until everything is delivered, at most ``timeout`` seconds, if the last state counts.

        Returns:
            Whether it is.
        """
        self.settle()
        if not self._ends:
            return True
        with self._changed:
            return self._changed.wait_for(lambda: len(self._free) == BUFFERS, timeout)

    # --- threads of their own

    def _warm(self, buffers: list[_Buffer], count: int) -> None:
        for buffer in buffers:
            # Whoever saves will find that there is no memory as well, and tell of it.
            with contextlib.suppress(RuntimeError, MemoryError):
                buffer.of(count).zero_()
            with self._changed:
                self._free.append(buffer)
                self._changed.notify_all()

    def _start(self) -> None:
        if not self._started:
            self._started = True
            for target in (self._copy, self._deliver):
                name = f"everstep-{self._name}{target.__name__}"
                threading.Thread(target=target, name=name, daemon=True).start()

    def _copy(self) -> None:
        stream = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None
        while True:
            job = self._copies.get()
            began = time.monotonic()
            try:
                self._chaos.at(FaultPoint.IN_SNAPSHOT, f"step {job.share.step} is being copied", job.share.step)
                problem = self._fill(job, stream)
            except Exception as error:
                problem = f"it could not be copied: {_line(error)}"
            job.taken = None
            job.copied.set()
            self.copying += time.monotonic() - began
            if problem:
                self._give_up(job, problem)
            else:
                self._deliveries.put(job)

    def _fill(self, job: _Job, stream: Any) -> str:
        """Copy this rank's part; returns what is wrong with it."""
        assert job.taken is not None
        share = job.share
        facts = {"step": str(share.step), "generation": str(share.generation)}
        mine = portion(job.taken, share.place, share.parts, facts)
        job.memory = job.buffer.of(mine.layout.bytes)
        self.copied += mine.layout.bytes
        if stream is None:
            mine.copy_to(job.memory)
        else:
            with torch.cuda.stream(stream):
                stream.wait_event(job.ready)
                mine.copy_to(job.memory)
            stream.synchronize()
        return "" if job.taken.unchanged else "the training function changed it while it was copied"

    def _deliver(self) -> None:
        while True:
            job = self._deliveries.get()
            assert job.memory is not None
            try:
                self._delivery.deliver(job.share, job.memory.numpy().data)
            except Exception as error:
                self._give_up(job, _line(error))
            else:
                self._release(job)

    def _give_up(self, job: _Job, problem: str) -> None:
        self._delivery.give_up(job.share, problem)
        self._release(job)

    def _release(self, job: _Job) -> None:
        with self._changed:
            self._free.append(job.buffer)
            self._changed.notify_all()


def _line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if isinstance(error, EverstepError) else f"{type(error).__name__}: {text}"

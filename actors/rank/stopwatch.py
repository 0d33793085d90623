"""What microbatches take where they are computed: a host that only tells a device what to do is soon through."""

import time

import torch


class Stopwatch:
    """Times microbatches, one after the other.

    Args:
        device: on which they are computed. On CUDA events are recorded, which costs microseconds and waits for nothing.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._cuda = device.type == "cuda"
        self._began: float | torch.cuda.Event = 0.0
        self._taken: list[tuple[float | torch.cuda.Event, float | torch.cuda.Event, float]] = []

    def start(self) -> None:
        """A microbatch begins; one that was begun and not stopped is forgotten."""
        self._began = self._now()

    def stop(self, loading: float) -> None:
        """It has ended, and its batch was waited for so many seconds before."""
        self._taken.append((self._began, self._now(), loading))

    def read(self) -> list[tuple[float, float]]:
        """Of each microbatch since the last call, seconds of computing and of waiting for its batch.

        On CUDA it blocks until all of them are computed; called when that is known it does not.
        """
        taken, self._taken = self._taken, []
        return [(_between(began, ended), loading) for began, ended, loading in taken]

    def _now(self) -> float | torch.cuda.Event:
        if not self._cuda:
            return time.monotonic()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event


def _between(began: float | torch.cuda.Event, ended: float | torch.cuda.Event) -> float:
    if isinstance(began, torch.cuda.Event):
        assert isinstance(ended, torch.cuda.Event)
        ended.synchronize()
        return float(began.elapsed_time(ended)) / 1e3
    assert not isinstance(ended, torch.cuda.Event)
    return ended - began

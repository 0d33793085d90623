"""Who has been silent for too long. Pure: it never trusts its own clock more than what it was told."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Silence:
    """A rank that was not heard of for ``seconds``."""

    incarnation: str
    seconds: float


def silent(last_heard: Mapping[str, float], now: float, timeout: float) -> tuple[Silence, ...]:
    """Ranks whose last sign of life is older than ``timeout`` seconds, the most silent first.

    Args:
        last_heard: by incarnation, on the same clock as ``now``, in seconds.
        now: the present, in seconds.
        timeout: in seconds.
    """
    late = [Silence(name, now - heard) for name, heard in last_heard.items() if now - heard > timeout]
    return tuple(sorted(late, key=lambda silence: (-silence.seconds, silence.incarnation)))


def forgive(last_heard: Mapping[str, float], asleep: float) -> dict[str, float]:
    """Last signs of life after the watcher itself did not run for ``asleep`` seconds: its own pause accuses nobody."""
    return {name: heard + asleep for name, heard in last_heard.items()}

"""What the stability monitors say of a run so far, as one value that is saved with its state and goes back with it."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from .certification import Trust, certified
from .consensus import Agree, Inconclusive, Verdict
from .envelope import Alarm, Envelope, Rule, Watch, judge
from .reading import Reading
from .signs import SIGNS

# So many alarms are kept; the first ones say most.
MOST = 16


@dataclass(frozen=True)
class Health:
    """It holds nothing of any rank, so it is the same on all of them, and survives changes of the world.

    Attributes:
        watch: what the envelopes are made of.
        trust: how many updates had been taken when weights were found healthy.
        alarms: the first of the run; they are what is wrong until somebody goes back to before them.
        silent: places of which there was no envelope at the last look.
    """

    watch: Watch = Watch()
    trust: Trust = Trust()
    alarms: tuple[Alarm, ...] = ()
    silent: int = 0


def looked(health: Health, step: int, readings: Iterable[Reading], rule: Rule, envelope: Envelope | None) -> Health:
    """After the comparison that ends with the update of ``step``.

    Args:
        readings: of all peers together.
        envelope: of other runs; None goes by the run's own past.

    Raises:
        ValueError: for a step that is not later than that of the look before.
    """
    held = tuple(readings)
    judged = judge(health.watch, held, rule, envelope)
    seen = sum((one.monitor, number) in SIGNS for one in held for number in one.numbers)
    trust = certified(health.trust, step + 1, _verdicts(judged.watch, seen - len(judged.abstained)))
    return replace(
        health,
        watch=judged.watch,
        trust=trust,
        alarms=(*health.alarms, *judged.alarms)[:MOST],
        silent=len(judged.abstained),
    )


def _verdicts(watch: Watch, judged: int) -> tuple[Verdict, ...]:
    """One of all places: a state is healthy if nothing is outside; where nothing was judged, nothing is known."""
    if watch.outside:
        (monitor, layer, head, number), _ = next(iter(watch.outside.items()))
        place = f"{layer} head {head}" if head is not None else layer or "the model"
        return (Inconclusive(f"{monitor} {number} of {place} is outside of what is healthy", {}),)
    return (Agree({}),) if judged else ()

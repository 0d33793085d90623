"""Whether a message can be true at all, whatever else is known: what cannot is refused before it counts."""

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

from ...actors.evidence import Check, Evidence
from ...actors.messages import Finished, Heartbeat, Raised, Ready, Report, Resumed, Serving
from ...policies.world import Position, Work


def impossible(message: object, size: int) -> str | None:
    """Why it cannot be true, in a few words; None if it can.

    Args:
        size: ranks of one replica.
    """
    found = _CHECKS.get(type(message))
    return found(message, size) if found is not None else None


def _place(position: Position, work: Work | None = None) -> str | None:
    if position.step < 0 or position.unit < 0 or position.attempt < 0:
        return f"it is at step {position.step}, unit {position.unit}, attempt {position.attempt}"
    if work is not None and work.microbatches < 1:
        return f"at step {position} it does {work}"
    return None


def _numbers(**numbers: float) -> str | None:
    """What is measured or counted is finite and not negative."""
    for name, value in numbers.items():
        if not (isfinite(value) and value >= 0):
            return f"{name}={value!r}"
    return None


def _report(message: Report, _: int) -> str | None:
    if message.work is None and (message.done or message.owed):
        return f"at step {message.position} it has begun nothing, and has {sorted(message.done | message.owed)}"
    return _place(message.position, message.work)


def _heartbeat(message: Heartbeat, _: int) -> str | None:
    counted = _numbers(computed=message.computed, busy=message.busy, held=message.held)
    counted = counted or _numbers(**vars(message.spent))
    steps = [record.step for record in message.records]
    if steps and steps != list(range(steps[0], steps[0] + len(steps))):
        return f"the records that it keeps are of steps {steps}"
    for record in message.records:
        # Its loss may well be no number.
        counted = counted or _numbers(seconds=record.seconds, microbatches=record.microbatches, world=record.world)
    return counted or _place(message.position, message.work)


def _serving(message: Serving, size: int) -> str | None:
    if message.world.ranks_per_replica != size:
        return f"its world has {message.world.ranks_per_replica} ranks in a replica, not {size}"
    return _place(message.position, message.work)


def _resumed(message: Resumed, _: int) -> str | None:
    times = _numbers(failed=message.failed, reduced=message.reduced, decided=message.decided)
    return times or _place(message.position)


def _evidence(message: Evidence, _: int) -> str | None:
    among, signatures = message.among, message.signatures.values()
    nobody = not among and message.check is Check.AUDIT
    if message.step < 0 or nobody or list(among) != sorted({*among}) or (among and among[0] < 0):
        return f"it is evidence of step {message.step} among {among}"
    if type(message.norm) is not float or not message.norm >= 0:
        return f"its contribution has the norm {message.norm!r}"
    wrong = next((each for each in signatures if type(each) is not int or not -(2**63) <= each < 2**63), None)
    return None if wrong is None else f"a signature is {wrong!r}"


_CHECKS: Mapping[type, Callable[[Any, int], str | None]] = {
    Evidence: _evidence,
    Heartbeat: _heartbeat,
    Report: _report,
    Serving: _serving,
    Resumed: _resumed,
    Ready: lambda message, _: _numbers(steps=message.steps, state_bytes=message.state_bytes),
    Raised: lambda message, _: _place(message.position),
    Finished: lambda message, _: _numbers(steps=message.steps, computed=message.computed),
}

"""From alarms to the fault that they fit together."""

from collections.abc import Iterable

from .envelope import Alarm
from .signs import HYPER, PRECISION, ROUTER


def diagnose(alarms: Iterable[Alarm]) -> frozenset[str]:
    """Names of faults, of ``signs``; none if the alarms say that something is wrong and not what.

    Updates that fall into few directions come from biased arithmetic, updates that are large beside the weights from a
    learning rate; both may be. Routers suffer from either, so they are named only where they are alone.
    """
    faults = {alarm.fault for alarm in alarms}
    causes = faults & {PRECISION, HYPER}
    return frozenset(causes or faults & {ROUTER})

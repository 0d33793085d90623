"""Which fault a set of alarms fits."""

import pytest
from everstep.monitors.diagnosis import diagnose
from everstep.monitors.envelope import Alarm, Band
from everstep.monitors.signs import HYPER, PRECISION, ROUTER, SIGNS


def alarm(monitor: str, number: str) -> Alarm:
    return Alarm(9, 7, monitor, "a", None, number, 1.0, Band(2.0, 3.0), SIGNS[monitor, number].fault, "")


ENTROPY, NORM = alarm("attention", "delta2.entropy"), alarm("attention", "delta2.norm")
RATIO, ROUTES, LOSS = alarm("baseline", "update_ratio"), alarm("router", "load"), alarm("baseline", "loss")


@pytest.mark.parametrize(
    ("alarms", "faults"),
    [
        ([], set()),
        ([LOSS, NORM], set()),
        ([LOSS, NORM, ENTROPY], {PRECISION}),
        ([RATIO, ROUTES], {HYPER}),
        ([ENTROPY, RATIO, ROUTES], {PRECISION, HYPER}),
        ([ROUTES, LOSS, NORM], {ROUTER}),
    ],
)
def test_alarms_fit_together(alarms: list[Alarm], faults: set[str]) -> None:
    assert diagnose(alarms) == faults

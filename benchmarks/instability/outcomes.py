"""What a run's readings would have said, and when, beside when its loss showed it to anybody. Pure."""

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from everstep.benchmarks.instability.plan import Run
from everstep.benchmarks.instability.training import Course, Trained
from everstep.monitors.diagnosis import diagnose
from everstep.monitors.envelope import Alarm, Band, Envelope, Rule, Watch, calibrate, judge
from everstep.monitors.reading import Reading
from everstep.monitors.signs import HYPER, PRECISION, ROUTER

# Steps over which the loss is averaged, and by how many nats that has to rise above its least until then.
SMOOTHED, RISE = 20, 0.2
# What watches mechanisms; the others are what people watch anyway.
MECHANISMS = ("attention", "router")
# What a run of everstep does not judge: it goes by weights, and by the loss.
UNSEEN = (
    ("router", "entropy"),
    ("router", "load"),
    ("baseline", "gradient_norm"),
    ("baseline", "max_attention_logit"),
    ("baseline", "weight_norm"),
)
# What everybody looks at.
WATCHED = ("loss", "gradient_norm")
# Steps from the first alarm within which others still count for what it is.
TOGETHER = 120
DISTANCES = (4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 16.0, 20.0)
NAMES: Mapping[str, frozenset[str]] = {
    "low_precision": frozenset({PRECISION}),
    "learning_rate": frozenset({HYPER}),
    "rate_jump": frozenset({HYPER}),
    "combined": frozenset({PRECISION, HYPER}),
    "router": frozenset({ROUTER}),
}


@dataclass(frozen=True)
class Outcome:
    """One run in hindsight.

    Attributes:
        alarm: step of the first alarm of a mechanism's monitor since the onset; None if there was none.
        baseline: the same of what people watch anyway.
        divergence: step at which the loss shows it; None if it never did.
        departure: step at which the loss or the gradient norm has left its own envelope, to stay outside until an alarm
            of it; None if none did since the onset.
        onset: first step with the fault.
        first: (monitor, number) of the alarms of the first step with any.
        fired: the same of all alarms that count for what it is.
        faults: what the alarms fit.
        false_alarms: places that alarmed before the onset, or at all in a healthy run.
        steps: that it went.
    """

    run: Run
    alarm: int | None
    baseline: int | None
    divergence: int | None
    departure: int | None
    onset: int
    first: tuple[tuple[str, str], ...]
    fired: tuple[tuple[str, str], ...]
    faults: frozenset[str]
    false_alarms: int
    steps: int

    @property
    def lead(self) -> int | None:
        """Steps from the alarm to the divergence; None without one of them."""
        return None if self.alarm is None or self.divergence is None else self.divergence - self.alarm

    @property
    def share(self) -> float | None:
        """Of the steps from onset to divergence, those after the alarm while loss and gradient norm look healthy.

        None if the loss never shows it. Nothing, where there is no alarm or what people watch is not healthy any more.
        """
        if self.divergence is None:
            return None
        healthy = self.divergence if self.departure is None else min(self.departure, self.divergence)
        ahead = 0 if self.alarm is None else max(0, healthy - self.alarm)
        return ahead / max(1, self.divergence - self.onset)

    @property
    def right(self) -> bool:
        """The alarms fit what was wrong and nothing else."""
        return self.faults == NAMES.get(self.run.kind, frozenset())


def divergence(losses: Sequence[float], onset: int) -> int | None:
    """The first step, from the onset on, whose smoothed loss is no number or has risen above the least before it."""
    least = float("inf")
    for step in range(SMOOTHED - 1, len(losses)):
        smoothed = sum(losses[step - SMOOTHED + 1 : step + 1]) / SMOOTHED
        if step >= onset and not smoothed <= least + RISE:
            return step
        least = min(least, smoothed)
    return None


def alarms_of(trained: Trained, envelope: Envelope | None, rule: Rule) -> tuple[Alarm, ...]:
    """All alarms of a run; the envelope is that of other runs, or without it that of the run's own past."""
    watch, alarms = Watch(), list[Alarm]()
    for reading in trained.readings:
        judged = judge(watch, [reading], rule, envelope)
        watch = judged.watch
        alarms += judged.alarms
    return tuple(alarms)


def outcome(
    run: Run,
    trained: Trained,
    course: Course,
    envelope: Envelope | None,
    rule: Rule,
    unseen: Collection[tuple[str, str]] = (),
) -> Outcome:
    """Judge one run.

    Args:
        unseen: (monitor, number) that nobody watches.
    """
    every = alarms_of(trained, envelope, rule)
    healthy = run.kind == "healthy"
    departed = [
        one.since
        for one in every
        if one.monitor == "baseline" and one.number in WATCHED and one.step >= course.onset and not healthy
    ]
    alarms = [one for one in every if (one.monitor, one.number) not in unseen]
    since = [one for one in alarms if one.step >= course.onset and not healthy]
    mechanisms = [one for one in since if one.monitor in MECHANISMS]
    first = min((one.step for one in since), default=None)
    early = [one for one in since if first is not None and one.step <= first + TOGETHER]
    return Outcome(
        run,
        alarm=min((one.step for one in mechanisms), default=None),
        baseline=min((one.step for one in since if one.monitor not in MECHANISMS), default=None),
        divergence=None if healthy else divergence(trained.losses, course.onset),
        departure=min(departed, default=None),
        onset=course.onset,
        first=tuple(sorted({(one.monitor, one.number) for one in since if one.step == first})),
        fired=tuple(sorted({(one.monitor, one.number) for one in early})),
        faults=diagnose(early),
        false_alarms=len({(one.monitor, one.layer, one.head, one.number) for one in alarms if one not in since}),
        steps=len(trained.losses),
    )


def calibrated(healthy: Sequence[Trained], rule: Rule) -> Envelope:
    """The envelope of healthy runs; each number has the least distance at which none alarms in that of the others.

    Raises:
        ValueError: if there are fewer than two runs, or they alarm at every distance.
    """
    if len(healthy) < 2:
        raise ValueError(f"an envelope needs two healthy runs or more of development seeds; there are {len(healthy)}")
    settled: dict[tuple[tuple[str, str, str], int], Band] = {}
    for distance in DISTANCES:
        wider = dataclasses.replace(rule, distance=distance)
        loud = {
            (alarm.monitor, alarm.number)
            for one in healthy
            for alarm in alarms_of(one, calibrate(_others(healthy, one), wider), wider)
        }
        for place, band in calibrate([one.readings for one in healthy], wider).items():
            (monitor, _, number), _ = place
            if (monitor, number) not in loud:
                settled.setdefault(place, band)
        if not loud:
            return settled
    raise ValueError(f"healthy runs differ by more than {DISTANCES[-1]} scales in {sorted(loud)}; take more of them")


def _others(runs: Sequence[Trained], one: Trained) -> Sequence[Iterable[Reading]]:
    return [other.readings for other in runs if other is not one]

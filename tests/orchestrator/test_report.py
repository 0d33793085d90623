"""What a run says: lines, tables and the progress display, from states made by hand."""

import io
from dataclasses import asdict, replace

import pytest
from everstep.actors.messages import StepRecord
from everstep.orchestrator import report
from everstep.orchestrator.progress import Progress
from everstep.orchestrator.view import MemberView, Phase, RecoveryRecord, RunState
from rich.console import Console, RenderableType

FIRST = RecoveryRecord(
    generation="1.2",
    cause="rank 1.0 died:\nconnection [reset]",
    step=8,
    world_before=4,
    world_after=3,
    lost=("1.0",),
    lost_microbatches=(2, 6),
    phases={"notice and report": 0.012, "rebuild": 0.0213, "recompute": 0.41, "total": 0.4433},
)
SECOND = RecoveryRecord("1.3", "rank 3.0 died", 20, 3, 2, phases={"rebuild": 0.005, "restore": 1.5})
RUNNING = RunState(
    "gpt",
    Phase.RUNNING,
    "training",
    "1.2",
    step=12,
    steps=40,
    world=3,
    loss=3.2104,
    weight_unit="tokens",
    weight_per_s=5123.4,
)
RECORD = StepRecord(11, 3.2104, 4096.0, 0.8, {"AdamW": 0.00098}, {"accuracy": 0.51234}, None, 8, 3, 0.0)
METRICS = {
    "weights_sha256": "ab" * 32,
    "loss": 2.91,
    "steps": 40,
    "microbatches_computed": 322,
    "recoveries": [asdict(FIRST), asdict(SECOND)],
    "faults_fired": ["sigkill of rank 1.0"],
}


def test_the_line_of_a_healthy_run() -> None:
    line = report.status_line(RUNNING)
    assert line == "step 12/40  loss 3.21  5.12k tokens/s  world 3  generation 1.2  running"


def test_the_line_shows_what_was_recorded_and_the_throughput() -> None:
    line = report.status_line(replace(RUNNING, record=RECORD, model_flops_per_s=1.234e11))
    assert line == (
        "step 12/40  loss 3.21  accuracy 0.5123  lr 0.00098  5.12k tokens/s  123 GFLOP/s  world 3  "
        "generation 1.2  running"
    )


def test_the_line_stays_short_however_much_was_recorded() -> None:
    rates = {f"AdamW/{group}": 0.1 * group for group in range(6)}
    record = replace(RECORD, lr=rates, numbers={f"n{place}": place for place in range(9)}, skipped="not\nfinite")
    line = report.status_line(replace(RUNNING, record=record))
    assert "  skipped (not finite)  n0 0  n1 1  n2 2  n3 3  and 5 more  lr AdamW/0 0  " in line
    assert "  lr AdamW/3 0.3  and 2 more  " in line
    same = report.status_line(replace(RUNNING, record=replace(RECORD, lr=dict.fromkeys(rates, 0.5))))
    assert "  lr 0.5  5.12k" in same


def test_the_line_says_why_a_run_waits() -> None:
    line = report.status_line(replace(RUNNING, phase=Phase.RECOVERING, reason="rank 1.0 died;\nasking"))
    assert line.endswith("generation 1.2  recovering: rank 1.0 died; asking")


def test_the_line_of_a_run_of_which_nothing_is_known() -> None:
    assert report.status_line(RunState("gpt", Phase.STARTING, "")) == "step 0  world 0  starting"


def test_a_recovery_is_a_row_with_its_phases_in_order() -> None:
    lines = text(report.recovery_report((FIRST, SECOND)), width=200).splitlines()
    head = next(line for line in lines if "generation" in line)
    assert " ".join(head.split()) == "generation step world microbatches report rebuild recompute restore total"
    assert lines[-4].split() == ["1.2", "8", "4", "→", "3", "2,", "6", "12", "21", "410", "443"]
    assert lines[-3].split() == ["1.3", "20", "3", "→", "2", "none", "5.0", "1500", "1505"]
    assert lines[-2:] == ["1.2  rank 1.0 died: connection [reset]", "1.3  rank 3.0 died"]


def test_the_phases_of_a_recovery_fit_into_a_terminal() -> None:
    names = ("notice and report", "plan", "rebuild", "recompute", "reduce and vote", "total")
    record = replace(FIRST, phases=dict.fromkeys(names, 12.345))
    wide = text(report.recovery_table((record,)), width=200)
    assert text(report.recovery_table((record,)), width=80) == wide
    assert "total" in wide
    assert "12345" in wide


def test_a_look_in_full_names_members_cause_and_recoveries() -> None:
    member = MemberView("gpt/0-ab", 0, 0, "member", "node-a", 4321, step=12, silent_s=0.31)
    shown = text(report.state_report(replace(RUNNING, members=(member,), first_cause="a\nb", recoveries=(FIRST,))))
    for part in ("gpt: step 12/40", "first cause  a b", "0.0", "node-a", "4321", "gpt/0-ab", "1.2  rank 1.0 died"):
        assert part in shown


def test_the_final_figures() -> None:
    assert report.summary_lines(METRICS) == [
        "finished  40 steps  loss 2.91  322 microbatches computed",
        "recovered  2 times  median 974 ms  longest 1505 ms",
        "fault fired  sigkill of rank 1.0",
    ]
    assert report.weights_line(METRICS) == "weights  " + "ab" * 32
    assert report.recoveries_of(METRICS) == (FIRST, SECOND)


def test_the_final_figures_of_a_run_that_says_little() -> None:
    assert report.summary_lines({}) == ["finished  0 steps"]
    assert report.weights_line({}) == "weights  unknown"


def test_weights_are_identical_only_if_both_are_known() -> None:
    assert report.comparison_line(METRICS, dict(METRICS)) == "identical: yes"
    assert report.comparison_line(METRICS, {"weights_sha256": "cd"}) == "identical: NO"
    assert not report.identical({}, {})
    assert not report.identical(METRICS, {})


def test_faults_that_never_fired_are_told() -> None:
    assert report.missed_faults_line(1, METRICS) is None
    assert report.missed_faults_line(0, {}) is None
    assert "only 1 of 3 planned faults fired" in (report.missed_faults_line(3, METRICS) or "")


@pytest.mark.parametrize(
    ("value", "short"),
    [
        (0, "0"),
        (87.25, "87.2"),
        (999.4, "999"),
        (999.6, "1k"),
        (5123, "5.12k"),
        (2.5e6, "2.5M"),
        (3e13, "30T"),
        (2e15, "2P"),
    ],
)
def test_counts_are_short(value: float, short: str) -> None:
    assert report.short_count(value) == short


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_plain_progress_prints_changes_at_once_and_steps_now_and_then() -> None:
    out, clock = io.StringIO(), Clock()
    with Progress(Console(file=out, width=40), clock=clock) as progress:
        progress(RunState("gpt", Phase.STARTING, "waiting for ranks 0.0, 1.0"))
        progress(RunState("gpt", Phase.STARTING, "waiting for ranks 1.0"))
        for step in range(13):
            clock.now += 0.5
            progress(replace(RUNNING, step=step))
            progress(replace(RUNNING, step=step))
        progress(replace(RUNNING, step=13, phase=Phase.RECOVERING, reason="rank 1.0 died"))
        progress(replace(RUNNING, step=13, recoveries=(FIRST,)))
        progress(replace(RUNNING, step=13, recoveries=(FIRST,)))
    heads = [line.partition("  ")[0] for line in out.getvalue().splitlines()]
    assert heads == ["step 0", "step 0", *(f"step {n}/40" for n in (0, 4, 8, 12, 13)), "recovered", "step 13/40"]
    assert "recovered  step 8  world 4 → 3  generation 1.2  443 ms  rank 1.0 died: connection [reset]" in out.getvalue()


def test_a_still_run_says_nothing_twice() -> None:
    out, clock = io.StringIO(), Clock()
    with Progress(Console(file=out), clock=clock, label="undisturbed") as progress:
        for _ in range(5):
            clock.now += 60
            progress(RUNNING)
    assert len(out.getvalue().splitlines()) == 1
    assert out.getvalue().startswith("undisturbed  step 12/40")


def test_a_warning_is_printed_once() -> None:
    out = io.StringIO()
    warned = replace(RUNNING, warnings=("metrics.jsonl: the disk is full",))
    with Progress(Console(file=out), clock=Clock()) as progress:
        for state in (RUNNING, warned, warned, replace(warned, warnings=(*warned.warnings, "a second [one]"))):
            progress(state)
    lines = out.getvalue().splitlines()
    assert lines[1:] == ["warning  metrics.jsonl: the disk is full", "warning  a second [one]"]
    assert "warning  metrics.jsonl" in text(report.state_report(warned))


def test_a_terminal_shows_one_living_line_and_keeps_recoveries() -> None:
    out = io.StringIO()
    with Progress(Console(file=out, force_terminal=True, width=120, soft_wrap=True), label="x") as progress:
        progress(RUNNING)
        progress(replace(RUNNING, step=13, recoveries=(FIRST,)))
        progress(replace(RUNNING, step=14, recoveries=(FIRST,)))
        progress(replace(RUNNING, phase=Phase.RECOVERING, reason="long " * 40 + "end"))
    shown = out.getvalue()
    assert "end" in shown
    assert all(f"step {step}/40" in shown for step in (12, 13, 14))
    assert shown.count("x  recovered  step 8") == 1


def text(shown: RenderableType, width: int = 120) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(shown)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def test_spares_and_what_the_world_is_to_become() -> None:
    spare = MemberView("0004-ab", None, None, "parked", "node-1", 42)
    member = MemberView("0000-ab", 0, 0, "member", "node-0", 41)
    state = replace(RUNNING, members=(member, spare), parked=1, target=3, decision="shrink: 1 of 2 replicas go on")
    state = replace(state, cadence={"checkpoint": "every 64 steps: Daly asks for it"})
    shown = text(report.state_report(state))
    assert "world 3 and 1 parked" in shown
    assert "target  3 replicas, there are 1" in shown
    assert "decision  shrink: 1 of 2 replicas go on" in shown
    assert "checkpoints  every 64 steps: Daly asks for it" in shown
    assert "None" not in shown
    assert "target" not in text(report.state_report(replace(state, target=1)))

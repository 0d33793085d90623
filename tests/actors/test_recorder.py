"""The record of a step holds the learning rates that were used, whoever changes them and when."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from everstep.actors.messages import StepRecord
from everstep.actors.rank.recorder import Recorder, estimated_flops
from torch import nn


def step(number: int = 0, **more: Any) -> Any:
    fixed = {"numbers": {}, "skipped": None, "readings": (), "microbatches": 8}
    return SimpleNamespace(number=number, loss=2.5, weight=30.0, **fixed, **more)


def parameter(*shape: int) -> nn.Parameter:
    made = nn.Parameter(torch.ones(*shape))
    made.grad = torch.ones(*shape)
    return made


def record(recorder: Recorder, number: int = 0) -> StepRecord:
    return recorder.record(step(number), 4)


def test_a_scheduler_comes_after_the_step_that_it_must_not_change() -> None:
    optimizer = torch.optim.SGD([parameter(2)], lr=0.5)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    recorder = Recorder({"": optimizer}, None)
    seen = []
    for number in range(3):
        optimizer.step()
        scheduler.step()
        seen.append(record(recorder, number).lr)
    assert seen == [{"SGD": 0.5}, {"SGD": 0.25}, {"SGD": 0.125}]


def test_a_rate_that_is_set_just_before_the_step_counts() -> None:
    optimizer = torch.optim.SGD([parameter(2)], lr=0.5)
    recorder = Recorder({"": optimizer}, None)
    optimizer.param_groups[0]["lr"] = 0.125
    optimizer.step()
    assert record(recorder).lr == {"SGD": 0.125}


def test_an_optimizer_that_does_nothing_has_the_rate_with_which_the_step_began() -> None:
    optimizer = torch.optim.SGD([parameter(2)], lr=0.5)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    recorder = Recorder({"": optimizer}, None)
    seen = []
    for number in range(3):
        if number != 1:
            optimizer.step()
        scheduler.step()
        seen.append(record(recorder, number).lr["SGD"])
    assert seen == [0.5, 0.25, 0.125]


def test_optimizers_and_groups_go_by_their_names() -> None:
    groups = [{"params": [parameter(2)], "lr": 0.5, "name": "decay"}, {"params": [parameter(3)], "lr": torch.tensor(2)}]
    optimizers = {"hidden": torch.optim.SGD(groups, lr=1.0), "rest": torch.optim.AdamW([parameter(4)], lr=0.25)}
    assert record(Recorder(optimizers, None)).lr == {"hidden/decay": 0.5, "hidden/1": 2.0, "rest": 0.25}


def test_flops_follow_the_weight_of_the_step() -> None:
    optimizer = torch.optim.SGD([parameter(2)], lr=0.5)
    assert record(Recorder({"": optimizer}, 12.0)).flops == 360.0
    assert record(Recorder({"": optimizer}, None)).flops is None
    assert estimated_flops([parameter(2, 3), parameter(5)]) == 66.0


def test_time_goes_from_the_end_of_one_step_to_the_end_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter((100.0, 101.5, 104.0))
    monkeypatch.setattr(
        "everstep.actors.rank.recorder.time", SimpleNamespace(monotonic=clock.__next__, time=lambda: 7.0)
    )
    recorder = Recorder({"": torch.optim.SGD([parameter(2)], lr=0.5)}, None)
    assert [record(recorder).seconds, record(recorder, 1).seconds] == [1.5, 2.5]

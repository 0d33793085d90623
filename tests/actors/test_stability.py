"""Peers share the look at their weights, tell each other at the same step, and come to the same judgement."""

import json
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from everstep.actors.rank.course import Course
from everstep.actors.rank.order import SampleOrder
from everstep.actors.rank.stability import Stability
from everstep.actors.rank.tally import decode, encode
from everstep.conf.elastic import ElasticConfig
from everstep.conf.errors import ConfigError, LoopError
from everstep.conf.remedy import Remedy
from everstep.conf.schedule import BatchSchedule
from everstep.examples.gpt import GPTConfig
from everstep.examples.moe import moe_gpt
from everstep.monitors.reading import Reading
from everstep.policies.changes import Change
from everstep.policies.world import Generation, Member, Seat, World
from torch import nn

EVERY, LAG = 6, 2


@dataclass
class Told:
    """A step that is applied."""

    number: int
    readings: tuple[Reading, ...] = ()
    loss: float = 2.0


def elastic(**more: Any) -> ElasticConfig:
    return ElasticConfig(microbatches_per_step=4, **{"monitor_every": EVERY, "monitor_lag": LAG, **more})


def world(ranks: int) -> World:
    return World(Generation(1, 1), tuple(Member(f"r{place}", Seat(place)) for place in range(ranks)))


def model() -> nn.Module:
    torch.manual_seed(1)
    return moe_gpt(GPTConfig(vocab_size=16, block=8, layers=2, width=16, heads=2))


class Peers:
    """Ranks that hold the same weights."""

    def __init__(self, ranks: int, **more: Any) -> None:
        self.model = model()
        self.courses = {f"r{place}": Course() for place in range(ranks)}
        self.ranks = {
            name: Stability({"": self.model}, course, elastic(**more), name) for name, course in self.courses.items()
        }

    def train(self, first: int, last: int, lost: frozenset[str] = frozenset()) -> dict[int, tuple[Reading, ...]]:
        """Steps of random updates; returns what was told, by step."""
        told = {}
        for number in range(first, last):
            generator = torch.Generator().manual_seed(number)
            readings = tuple(one for name, held in self.ranks.items() if name not in lost for one in held.due(number))
            with torch.no_grad():
                for weight in self.model.parameters():
                    weight += 1e-3 * torch.randn(weight.shape, generator=generator)
            for held in self.ranks.values():
                held.after(Told(number, readings), world(len(self.ranks)))  # type: ignore[arg-type]
            if readings:
                told[number] = tuple(sorted(readings, key=lambda one: (one.monitor, one.layer, str(one.head))))
        return told


def test_peers_together_tell_what_one_alone_would_at_the_same_steps() -> None:
    alone, three = Peers(1).train(0, 3 * EVERY), Peers(3).train(0, 3 * EVERY)
    assert alone == three
    assert set(alone) == {EVERY - 1 + LAG, 2 * EVERY - 1 + LAG}
    seen = [(one.monitor, one.layer, one.head) for one in alone[EVERY - 1 + LAG]]
    assert len(seen) == len(set(seen)) == 4 + 4 + 2
    assert {one.step for one in alone[EVERY - 1 + LAG]} == {EVERY - 1}


def test_all_come_to_the_same_judgement_and_what_a_lost_peer_had_seen_is_missing_once() -> None:
    peers = Peers(3)
    told = EVERY - 1 + LAG
    peers.train(0, told)
    (lost,) = peers.train(told, told + 1, lost=frozenset({"r1"})).values()
    whole = peers.train(told + 1, told + EVERY + 1)[told + EVERY]
    assert len(lost) < len(whole) == 10
    healths = [course.health for course in peers.courses.values()]
    assert healths[0] == healths[1] == healths[2]
    assert healths[0].trust.checked == 2 * EVERY


def test_what_went_back_between_two_samples_compares_nothing() -> None:
    peers = Peers(1)
    peers.train(0, EVERY - LAG)  # the first sample is taken after the last of these
    peers.ranks = {"r0": Stability({"": peers.model}, peers.courses["r0"], elastic(), "r0")}
    assert set(peers.train(EVERY - LAG, 2 * EVERY + LAG)) == {2 * EVERY - 1 + LAG}


def test_weights_that_are_no_numbers_are_a_finding_and_end_nothing() -> None:
    peers = Peers(1, on_instability="stop")
    peers.train(0, EVERY)
    with torch.no_grad():
        peers.model.get_parameter("blocks.0.attention.qkv.weight").fill_(torch.nan)
    told = peers.train(EVERY, 5 * EVERY)
    assert all(len(readings) == 10 for readings in told.values())
    assert peers.ranks["r0"].told.problem == ""


def test_a_look_that_fails_is_said_once_and_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise torch.linalg.LinAlgError("it does\nnot converge")

    for part in ("compare", "take"):
        with monkeypatch.context() as patch:
            peers = Peers(2)
            patch.setattr(f"everstep.actors.rank.stability.{part}", broken)
            assert peers.train(0, 3 * EVERY) == {}
        assert peers.ranks["r0"].told.problem.endswith("LinAlgError: it does not converge")
        # What can be seen again is seen.
        assert peers.train(3 * EVERY, 5 * EVERY)


def test_what_is_found_is_told_and_where_nothing_is_only_who_asked_is_refused() -> None:
    assert Peers(1).ranks["r0"].told.watched == "every 6 steps 4 heads of 2 layers and 2 routers"
    plain = {"": nn.Linear(2, 2)}
    quiet = Stability(plain, Course(), elastic(monitor_every=None), "r0")
    assert quiet.told.watched.startswith(
        "nothing: no queries and keys are found in Linear: no module has q_proj/k_proj"
    )
    quiet.after(Told(0), world(1))  # type: ignore[arg-type]
    assert Stability(plain, Course(), elastic(monitor_every=0), "r0").told.watched == (
        "nothing: elastic.monitor_every is 0"
    )
    for asked in ({}, {"monitor_every": None, "on_instability": "stop"}):
        with pytest.raises(LoopError, match="stability monitors are asked for, but no queries and keys are found in"):
            Stability(plain, Course(), elastic(**asked), "r0")


def test_several_models_are_watched_by_their_names_and_a_strange_one_ends_nothing() -> None:
    both = Stability({"policy.new": model(), "keys": model()}, Course(), elastic(), "r0")
    assert both.told.watched == "every 6 steps 8 heads of 4 layers and 4 routers"

    class Strange(nn.Linear):
        @property
        def experts(self) -> object:
            raise TypeError("not now")

        @property
        def is_cross_attention(self) -> bool:
            raise TypeError("not now")

    quiet = Stability({"": Strange(2, 2)}, Course(), elastic(monitor_every=None), "r0")
    assert quiet.told.watched == "nothing: Strange cannot be looked at: TypeError: not now"


def test_heads_that_do_not_fit_are_refused_in_one_line() -> None:
    odd = model()
    odd.get_submodule("blocks.0.attention").heads = 3
    with pytest.raises(LoopError, match=r"blocks.0.attention.qkv.weight: 48 outputs do not divide into 3 heads"):
        Stability({"": odd}, Course(), elastic(), "r0")


def test_an_envelope_that_is_not_there_is_refused(tmp_path) -> None:
    with pytest.raises(LoopError, match=r"elastic.envelope=.*none: it cannot be read: No such file"):
        Stability({"": model()}, Course(), elastic(envelope=str(tmp_path / "none")), "r0")


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"monitor_every": 2}, "elastic.monitor_every=2 must be more than elastic.monitor_lag=2"),
        ({"monitor_every": -1}, "elastic.monitor_every=-1 must be a whole number of at least 0"),
        ({"monitor_every": 0, "on_instability": "hold"}, "elastic.on_instability=hold needs monitors"),
        ({"on_instability": "rollback"}, "would go into the same trouble again"),
        ({"on_instability": "hold", "snapshot_every": 0}, "elastic.on_instability=hold needs saved states"),
        ({"on_instability": "pray"}, "use one of: observe, hold, rollback, stop"),
    ],
)
def test_settings_that_cannot_work(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        elastic(**keys)


@pytest.mark.parametrize(
    "keys", [{"skip_steps": -1}, {"learning_rate": 0}, {"learning_rate": True}, {"switches": {"a": 1}}, {"times": 0}]
)
def test_remedies_that_are_none(keys: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"elastic.remedy.{next(iter(keys))}="):
        Remedy(**keys)


def test_readings_travel_to_the_bit() -> None:
    told = (
        Reading("attention", 3, "blocks.0", 1, {"delta2.entropy": 0.1 + 0.2, "delta3.norm": float("inf")}),
        Reading("router", 3, "", None, {}),
    )
    numbers, back = decode(encode({"a": (0.5, 1.0)}, told))
    assert (numbers, back) == ({"a": (0.5, 1.0)}, told)
    assert decode(encode({})) == ({}, ())
    assert json.loads(encode({}, told))[0] == {}


def test_rates_go_by_the_changes_and_nobody_else_sees_it() -> None:
    weight, scale = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    groups = [{"params": [weight], "lr": 1.0}, {"params": [scale], "lr": torch.tensor(2.0)}]
    optimizer = torch.optim.SGD(groups)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    course, seen = Course(), list[tuple[float, float]]()
    course.watch_rates([optimizer], lambda: len(seen))
    course.changes = (Change(1, 1, learning_rate=0.25),)
    for _ in range(3):
        weight.grad, scale.grad = torch.ones(1), torch.ones(1)
        optimizer.step()
        scheduler.step()
        seen.append((weight.item(), scale.item()))
    assert seen == [(-1.0, -2.0), (-1.25, -2.5), (-1.5, -3.0)]
    assert [float(group["lr"]) for group in optimizer.state_dict()["param_groups"]] == [1.0, 2.0]


def test_data_that_is_passed_over_is_that_of_the_steps_that_were_skipped() -> None:
    schedule = BatchSchedule.of({0: 2, 4: 3})
    course = Course(changes=(Change(1, 3, skip_steps=2),))
    plain, changed = (
        SampleOrder(1000, 2, schedule, 5, shuffle=True, passes_over=passes)
        for passes in (lambda step: 0, lambda step: course.passed_over(schedule, step))
    )
    assert [changed.samples(step, 1) for step in (0, 2)] == [plain.samples(step, 1) for step in (0, 2)]
    # Step 3 begins where step 5 would have, and what follows goes on from there without a gap.
    assert changed.samples(3, 0) == plain.samples(5, 0)
    in_order = [one for step in (3, 4, 5) for index in range(schedule.at(step)) for one in changed.samples(step, index)]
    assert in_order == [one for step in (5, 6, 7) for index in range(3) for one in plain.samples(step, index)][:16]

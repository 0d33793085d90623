"""What ranks bring between two steps: a signature for every part of the state, and none of anything else."""

from collections.abc import Callable

import pytest
import torch
from everstep.actors.evidence import Check, Evidence
from everstep.actors.rank.checks import Checks, equal_on_peers, signed
from everstep.actors.rank.signing import Signer
from everstep.policies.world import Generation, Member, Seat, World
from torch import nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import StepLR

WORLD = World(Generation(2, 3), tuple(Member(f"rank-{place}", Seat(place)) for place in (0, 2, 5)))


class Rank:
    """A model with a tied weight and a buffer, after one step."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.model[1].weight = self.model[0].weight
        self.optimizer = AdamW(self.model.parameters(), lr=0.1)
        self.scheduler = StepLR(self.optimizer, 5)
        self.grid = {"0.weight": -20}
        self.model(torch.randn(3, 4)).square().sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def signed(self) -> dict[str, int]:
        kept = {"optimizer": self.optimizer, "scheduler": self.scheduler}
        told, uncovered = signed(equal_on_peers({"": self.model}, kept, self.grid))
        assert uncovered == ()
        return told

    def state(self, place: int) -> dict[str, torch.Tensor]:
        return self.optimizer.state[self.optimizer.param_groups[0]["params"][place]]


def flip(tensor: torch.Tensor) -> None:
    tensor.data.view(torch.int32).view(-1)[-1] ^= 1


CHANGES: dict[str, Callable[[Rank], None]] = {
    "0.weight": lambda rank: flip(rank.model[0].weight),
    "1.bias": lambda rank: flip(rank.model[1].bias),
    "2.running_mean": lambda rank: flip(rank.model[2].running_mean),
    "optimizer exp_avg of 0.weight": lambda rank: flip(rank.state(0)["exp_avg"]),
    "optimizer exp_avg_sq of 2.bias": lambda rank: flip(rank.state(4)["exp_avg_sq"]),
    "optimizer": lambda rank: flip(rank.state(1)["step"]),
    "scheduler": lambda rank: setattr(rank.scheduler, "last_epoch", 3),
    "grid": lambda rank: rank.grid.update({"0.weight": -19}),
}


@pytest.mark.parametrize("name", CHANGES)
def test_one_change_shows_under_one_name(name: str) -> None:
    rank, other = Rank(), Rank()
    assert rank.signed() == other.signed()
    CHANGES[name](other)
    before, after = rank.signed(), other.signed()
    assert {one for one in before if before[one] != after[one]} == {name}


def test_the_rate_is_a_part_of_the_optimizer() -> None:
    rank, other = Rank(), Rank()
    other.optimizer.param_groups[0]["lr"] = 0.2
    assert rank.signed()["optimizer"] != other.signed()["optimizer"]


def test_what_has_no_signature_is_named() -> None:
    told, uncovered = signed({"a": 1, "b": {3}, "c": torch.eye(2).to_sparse(), "d": torch.eye(2)})
    assert list(told) == ["a", "d"]
    assert [text.split(":")[0] for text in uncovered] == ["b", "c"]


class Unwilling(torch.Tensor):
    """Of a kind that refuses what is done to it."""

    @classmethod
    def __torch_function__(cls, func: object, types: object, args: object = (), kwargs: object = None) -> object:
        raise RuntimeError("not like this")


def test_a_check_never_ends_a_run() -> None:
    held = torch.ones(3).as_subclass(Unwilling)
    told, uncovered = signed({"a": 1, "b": held})
    assert (list(told), uncovered) == (["a"], ("b: RuntimeError: not like this",))
    signer = Signer(folds=True)
    signer.take("a", torch.ones(2))
    assert signer.signature(None) is not None
    signer.take("b", held)
    assert signer.signature(None) is None


class Odd(Optimizer):
    """Keeps something of a parameter that no model has."""

    def __init__(self) -> None:
        super().__init__([torch.zeros(3)], {})
        self.state[self.param_groups[0]["params"][0]] = {"sum": torch.ones(2), "seen": 4}

    def step(self, closure: object = None) -> None:
        pass


def test_optimizers_over_other_tensors() -> None:
    told, _ = signed(equal_on_peers({}, {"optimizer odd": Odd()}, {}))
    assert sorted(told) == ["grid", "optimizer odd", "optimizer odd sum of parameter 0"]


def sent(every: int, step: int, state: dict[str, int], last: int = 100) -> list[Evidence]:
    said: list[Evidence] = []
    Checks("rank-2", every, last, lambda: state, said.append).at(step, WORLD)
    return said


def test_it_is_sent_at_its_boundaries_and_all_bring_the_same() -> None:
    (message,) = sent(3, 6, {"a": 1})
    assert (message.check, message.step, message.generation) == (Check.STATE, 6, Generation(2, 3))
    assert (message.incarnation, message.among) == ("rank-2", ())
    assert list(message.signatures) == ["a"]
    assert sent(3, 7, {"a": 1}) == sent(0, 6, {"a": 1}) == []


def test_the_last_state_is_compared_wherever_it_falls() -> None:
    (message,) = sent(3, 7, {"a": 1}, last=7)
    assert (message.check, message.step) == (Check.STATE, 7)
    assert sent(0, 7, {"a": 1}, last=7) == []


def test_a_message_stays_small_and_differs_all_the_same() -> None:
    many = {f"blocks.{block}.{part}": block for block in range(300) for part in ("weight", "bias")}
    (message,) = sent(1, 1, many)
    assert len(message.signatures) == 300
    (other,) = sent(1, 1, {**many, "blocks.7.bias": -1})
    different = {name for name, one in message.signatures.items() if other.signatures[name] != one}
    assert different == {"blocks.7"}

"""Replicas that hold another state than most are named, with the tensors."""

import torch
from everstep.monitors.consensus import Agree, Attributed, Inconclusive
from everstep.monitors.replicas import state_verdict
from everstep.monitors.signatures import tensor_signature


def states(ranks: int) -> list[dict[str, torch.Tensor]]:
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 8)).sum().backward()
    optimizer.step()
    named = dict(model.state_dict())
    for name, parameter in model.named_parameters():
        named[f"exp_avg {name}"] = optimizer.state[parameter]["exp_avg"]
    return [{name: tensor.detach().clone() for name, tensor in named.items()} for _ in range(ranks)]


def signed(held: list[dict[str, torch.Tensor]]) -> dict[int, dict[str, int]]:
    return {rank: {name: tensor_signature(tensor) for name, tensor in one.items()} for rank, one in enumerate(held)}


def flip(tensor: torch.Tensor) -> None:
    tensor.view(torch.int32).view(-1)[3] ^= 1 << 7


def test_equal_states() -> None:
    assert isinstance(state_verdict(signed(states(4))), Agree)


def test_one_bit_of_one_moment() -> None:
    held = states(4)
    flip(held[2]["exp_avg weight"])
    found = state_verdict(signed(held))
    assert isinstance(found, Attributed)
    assert found.ranks == (2,)
    assert "rank 2 holds another exp_avg weight" in found.reason
    assert found.evidence.keys() == {0, 1, 2, 3}
    assert found.evidence[0].keys() == {"exp_avg weight"}


def test_two_of_five_in_different_tensors() -> None:
    held = states(5)
    flip(held[2]["exp_avg weight"])
    flip(held[4]["weight"])
    found = state_verdict(signed(held))
    assert isinstance(found, Attributed)
    assert found.ranks == (2, 4)


def test_two_of_four_are_no_minority() -> None:
    held = states(4)
    flip(held[2]["exp_avg weight"])
    flip(held[3]["weight"])
    found = state_verdict(signed(held))
    assert isinstance(found, Inconclusive)
    assert "each in something else" in found.reason


def test_two_peers_only_detect() -> None:
    held = states(2)
    flip(held[1]["weight"])
    found = state_verdict(signed(held))
    assert isinstance(found, Inconclusive)
    assert found.reason.startswith("weight: ")


def test_a_tensor_that_is_missing() -> None:
    held = signed(states(3))
    del held[1]["weight"]
    found = state_verdict(held)
    assert isinstance(found, Inconclusive)
    assert "rank 1 brought no weight" in found.reason

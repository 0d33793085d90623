"""Groups of real processes: what collectives mean, and the ways out when a peer is stopped or killed."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SIZE = 3
Said = list[list[dict[str, Any]]]


@pytest.fixture(scope="module")
def said() -> dict[str, Said]:
    """What the ranks of every scenario said."""
    program = Path(__file__).with_name("gloo_ranks.py")
    played = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=150)
    assert played.returncode == 0, played.stderr[-3000:]
    return json.loads(played.stdout)  # type: ignore[no-any-return]


def test_what_collectives_mean(said: dict[str, Said]) -> None:
    for rank, (heard,) in enumerate(said["collectives"]):
        assert heard["gathered"] == [0, 0.5, 1, 1.5, 2, 2.5]
        assert heard["exchanged"] == [10 * other + 2 * rank + place for other in range(SIZE) for place in (0, 1)]
        assert heard["maxima"] == [2.0, -1.0]


def test_every_peer_is_known_by_its_socket(said: dict[str, Said]) -> None:
    for rank, (heard,) in enumerate(said["collectives"]):
        assert heard["peers"] == [other for other in range(SIZE) if other != rank]


def test_a_closed_group_says_so(said: dict[str, Said]) -> None:
    assert said["collectives"][0][0]["closed"] == "all-reduce: the group of generation 1.1 is closed"


def test_sockets_are_known_although_their_numbers_were_used_before(said: dict[str, Said]) -> None:
    """As when an older group is freed while a new one is built."""
    assert [heard[0]["owned"] for heard in said["stopped"]] == [SIZE - 1] * SIZE


@pytest.mark.parametrize("rank", [0, 1])
def test_an_interruption_ends_the_wait_for_a_stopped_peer(said: dict[str, Said], rank: int) -> None:
    _, failed, _ = said["stopped"][rank]
    assert failed["failed"]
    assert 0.25 < failed["seconds"] < 0.3 + 1.0
    assert failed["freed_after"] < 2.0, "the collective itself goes on waiting"


@pytest.mark.parametrize("rank", [0, 1])
def test_the_others_form_a_group_without_the_stopped_one(said: dict[str, Said], rank: int) -> None:
    assert said["stopped"][rank][2]["again"] == [3.0] * 4


def test_the_death_of_a_peer_ends_a_collective_at_once_and_somebody_accuses_it(said: dict[str, Said]) -> None:
    failures = [heard[1] for heard in said["killed"][:2]]
    for failed in failures:
        assert failed["failed"]
        assert failed["seconds"] < 2.0
        assert "generation 1.1" in failed["text"]
        assert "\n" not in failed["text"]
    assert 2 in [failed["accused"] for failed in failures], failures


def test_a_group_that_broke_in_the_middle_of_a_message_comes_to_rest(said: dict[str, Said]) -> None:
    """Its loop would wake up as fast as it can for the rest of that message, which nothing reads any more."""
    _, heard = said["halfway"][0]
    assert heard["half"]
    assert "closed by peer" in heard["failed"]
    assert heard["rested"]
    assert heard["cpu_s"] < 0.05


def test_sockets_of_others_are_not_touched(said: dict[str, Said]) -> None:
    """Not even those that were opened while the group was built."""
    for (heard,) in said["strangers"]:
        assert heard["pairs"] > 2
        assert heard["sum"] == [6.0] * 4
        assert heard["owned"] == SIZE - 1
        assert (heard["taken"], heard["broken"]) == (0, 0)
        assert heard["failed"], "the group itself was to be left"


def test_a_hundred_generations_leave_nothing_behind(said: dict[str, Said]) -> None:
    for (heard,) in said["many"]:
        before, after = heard["before"], heard["after"]
        assert after["threads"] <= before["threads"] + 2
        assert after["descriptors"] <= before["descriptors"] + 5
        assert after["mib"] <= before["mib"] + 16


def test_a_group_that_nobody_freed_ends_no_process(said: dict[str, Said]) -> None:
    """With a collective under way, the last reference to it may fall on a thread of its own."""
    assert said["dropped"] == [[{"alive": True}]] * SIZE


def test_a_peer_that_does_not_come_is_waited_for_no_longer_than_allowed(said: dict[str, Said]) -> None:
    heard = said["alone"][0][0]["peers"]
    assert heard["text"].startswith("the group of generation 1.1 was not built after 1")
    assert 0.9 < heard["seconds"] < 5.0


def test_a_store_that_is_gone_is_an_error_of_communication(said: dict[str, Said]) -> None:
    heard = said["alone"][0][0]["store"]
    assert heard["text"].startswith("the group of generation 1.1 was not built after")
    assert heard["seconds"] < 10.0

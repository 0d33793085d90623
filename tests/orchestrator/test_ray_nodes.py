"""What Ray says of its nodes is read right, and told once."""

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import pytest
import ray
from everstep.orchestrator.machine.events import NodeDraining, NodeLost, Room
from everstep.orchestrator.ray_cluster import RayCluster, _Life
from everstep.orchestrator.ray_nodes import Sight, look_around, news, preferences, sight
from everstep.policies.placement import Node
from ray.exceptions import ActorUnschedulableError

NEED = {"CPU": 2.0, "GPU": 0.0, "special": 0.5}


def entry(name: str, alive: bool = True, **labels: str) -> dict[str, Any]:
    return {"NodeID": name, "Alive": alive, "Labels": labels, "DeathReasonMessage": "" if alive else "it vanished"}


def test_a_node_has_room_for_as_many_ranks_as_its_scarcest_resource_allows() -> None:
    listing = [entry("b"), entry("a"), entry("c"), entry("d")]
    available = {"a": {"CPU": 8.0, "special": 1.0}, "b": {"CPU": 3.9999999, "special": 9.0}, "c": {"CPU": 8.0}}
    seen = sight(listing, available, {}, NEED)
    assert [(node.name, node.room) for node in seen.nodes] == [("a", 2), ("b", 2), ("c", 0), ("d", 0)]


def test_failure_domains_come_from_labels() -> None:
    listing = [
        {**entry("a"), "Labels": {"ray.io/availability-zone": "z1", "zone": "no", "rack": "r7"}},
        {**entry("b"), "Labels": {"zone": "z2"}},
        {**entry("c"), "Labels": None},
    ]
    domains = [(node.zone, node.rack) for node in sight(listing, {}, {}, NEED).nodes]
    assert domains == [("z1", "r7"), ("z2", ""), ("", "")]


def test_a_drained_node_has_no_room() -> None:
    seen = sight([entry("a")], {"a": {"CPU": 8.0, "special": 8.0}}, {"a": None}, NEED)
    assert (seen.nodes[0].room, seen.draining) == (0, {"a": None})


def test_what_could_not_be_started_since_its_node_went_is_gone() -> None:
    class Actor:
        """Of a node that is no more."""

        @property
        def alive(self) -> "Actor":
            return self

        async def remote(self) -> None:
            raise ActorUnschedulableError("its node does not exist any more")

    async def gone() -> bool:
        watch = asyncio.create_task(asyncio.sleep(0))
        return await RayCluster._gone(_Life(Actor(), watch), 10.0)

    assert asyncio.run(gone())


def test_news_are_told_once() -> None:
    first = Sight((Node("a", room=3), Node("b", room=2)))
    assert news(Sight(), first, 2) == [Room(2, first.nodes)]
    assert news(first, first, 2) == []
    second = Sight((Node("a", room=0),), {"b": "it vanished", "old": "long ago"}, {"a": None, "c": 29.7})
    told = [
        NodeLost("b", "it vanished"),
        NodeDraining("a", "Ray drains it"),
        NodeDraining("c", "Ray drains it, and ends it in 30 s"),
        Room(0, second.nodes),
    ]
    assert news(first, second, 2) == told
    assert news(second, second, 2) == []


def test_a_rank_is_started_on_the_best_node_else_on_none_that_is_avoided_else_anywhere() -> None:
    label = "ray.io/node-id"
    assert preferences((), None) == [{}]
    assert preferences({"b", "a"}, None) == [{label: "!in(a,b)"}, {}]
    assert preferences({"b"}, "a") == [{label: "a"}, {label: "!in(b)"}, {}]


@pytest.fixture(scope="module")
def one_node() -> Iterator[str]:
    os.environ["RAY_AUTH_MODE"] = "disabled"
    ray.init(address="local", num_cpus=3, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield ray.nodes()[0]["NodeID"]
    ray.shutdown()


@pytest.mark.ray
def test_ray_answers_in_the_form_that_is_read(one_node: str) -> None:
    seen = look_around({"CPU": 1.0})
    assert seen == Sight((Node(one_node, room=3),))

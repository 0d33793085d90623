"""Spares, replacements, orphans and quarantine in worlds where failures go on and on."""

from dataclasses import replace
from pathlib import Path

import pytest
from everstep.conf.simulation import Flapping, Simulation
from everstep.orchestrator.simulation.engine import Engine
from everstep.orchestrator.simulation.failures import Failure, What
from everstep.orchestrator.simulation.fleet import Fleet

from .worlds import STEP_S, play, traced, world


def flapping(*, quarantine: bool) -> Simulation:
    """Two of twelve nodes fail every two minutes and are there again at once; the others never fail."""
    simulation = world(
        replicas=8,
        ranks_per_node=1,
        idle_nodes=4,
        costs={"restart": 10.0},
        policies={"replace": True, "quarantine": quarantine},
        failures={"flapping": Flapping(nodes=2, mtbf=120.0)},
        steps=None,
        seconds=2 * 3600.0,
    )
    return replace(simulation, batch=replace(simulation.batch, microbatches=32))


def test_quarantine_keeps_flapping_nodes_out() -> None:
    with_it, without_it = (play(flapping(quarantine=wanted)) for wanted in (True, False))
    assert without_it.failures["flapping node"] > 50
    # Three failures of each, and a few more whenever they have been forgiven.
    assert 4 <= with_it.failures["flapping node"] < without_it.failures["flapping node"] / 4
    assert with_it.goodput > without_it.goodput


@pytest.mark.parametrize(("spares", "fewest"), [(0, 3), (2, 5), (5, 8)])
def test_spares_absorb_as_many_losses_as_there_are_of_them(tmp_path: Path, spares: int, fewest: int) -> None:
    losses = [f"{20 * place + 5},rank,{place}" for place in range(5)]
    policies = {"recovery": "swap", "spares": spares}
    outcome = play(traced(tmp_path, *losses, replicas=8, policies=policies, steps=60))
    assert outcome.remedies.get("swap", 0) == spares
    assert outcome.remedies.get("shrink", 0) == 5 - spares
    assert outcome.fewest == fewest


def test_orphans_of_two_broken_replicas_make_one_whole(tmp_path: Path) -> None:
    """Each of two replicas loses one of its ranks, at different coordinates."""
    losses = ("10,rank,0", "10,rank,3")
    policies = {"recovery": "swap"}
    outcome = play(traced(tmp_path, *losses, replicas=4, ranks_per_replica=2, policies=policies))
    assert outcome.end == "succeeded"
    assert outcome.fewest == 3
    # The second death is heard of in the recovery from the first.
    assert outcome.remedies == {"complete": 1}


def test_a_node_that_is_lost_has_failed_once_however_many_ranks_it_had(tmp_path: Path) -> None:
    engine = Engine(traced(tmp_path, "10,node,1", replicas=8, ranks_per_node=4, idle_nodes=1, repair=1.0))
    engine.run()
    assert {node: record.failures for node, record in engine.state.failures.records.items()} == {"node1": 1}


def test_weighted_gives_a_straggler_less(tmp_path: Path) -> None:
    """One of eight is half as fast for the whole run; speeds go out with the generation that a loss opens."""
    lines = ("1,slow,7,2,1e6", "30,rank,0,1,1")
    seconds = {}
    for workload in ("balanced", "weighted"):
        simulation = traced(tmp_path, *lines, columns="time,what,target,factor,seconds", replicas=8,
                            policies={"workload": workload})  # fmt: skip
        simulation = replace(simulation, batch=replace(simulation.batch, microbatches=56))
        seconds[workload] = play(simulation).seconds["slow ranks"]
    # Eight for each of seven would be sixteen of its time; four or five for it and nine for some others are less.
    assert 0 < seconds["weighted"] < seconds["balanced"] / 2


def test_all_dead_is_survived_by_a_checkpoint(tmp_path: Path) -> None:
    """The rack with everybody in it is lost; other nodes are there."""
    policies = {"recovery": "auto", "checkpoint_every": 5, "replace": True, "patience": 600.0}
    costs = {"restart": 10.0, "state_bytes": 1e9, "storage_per_byte": 2e-9}
    fleet = {"minimum": 4, "ranks_per_node": 1, "nodes_per_rack": 4, "idle_nodes": 8}
    outcome = play(traced(tmp_path, f"{7.5 * STEP_S},rack,0", costs=costs, policies=policies, **fleet))
    assert outcome.end == "succeeded"
    assert outcome.remedies == {"restore from storage": 1}
    assert outcome.redone_microbatches == 2 * 16
    assert outcome.seconds["waiting for capacity"] == pytest.approx(10.0)
    assert outcome.seconds["steps done again"] == pytest.approx(2.5 * STEP_S)
    assert outcome.seconds["recovery"] == pytest.approx(0.25 + 0.125 + 2.0)


def test_slots_are_given_and_come_back() -> None:
    fleet = Fleet(nodes=3, ranks_per_node=2, nodes_per_rack=2)
    assert [fleet.place(name, 0.0) for name in ("a", "b", "c")] == [0, 1, 2]
    assert fleet.place("d", 0.0, avoid=["node1"]) == 4
    assert fleet.hit(Failure(10.0, What.NODE, 0, repair=5.0)) == ["a", "b"]
    assert fleet.free(10.0) == 2
    assert fleet.next_repair() == 15.0
    # A second blow makes the repair later.
    assert fleet.hit(Failure(12.0, What.RANK, 1, repair=9.0)) == []
    assert (fleet.free(15.0), fleet.next_repair()) == (3, 21.0)
    assert fleet.free(21.0) == 4
    assert fleet.next_repair() is None
    assert fleet.hit(Failure(30.0, What.RACK, 1)) == ["d"]
    assert fleet.free(1e9) == 3
    # Four ranks for 10 s, two for 20 s, one from then on.
    assert fleet.count(40.0) == pytest.approx(40 + 2 * 20 + 10)

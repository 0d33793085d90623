"""Snapshots that wait for a check need memory as well; where there is none for them, the newest ones are kept alone."""

import pytest
from everstep.actors.messages import Hello, Ready
from everstep.conf.elastic import ElasticConfig
from everstep.orchestrator.machine.events import Heard, Warned
from everstep.orchestrator.vaults import Vaults
from everstep.policies.retention import PINNED, Marks

STATE = 1 << 20


def vaults(room: int, pinned: int = PINNED) -> Vaults:
    """One node, that keeps two and makes a third."""
    elastic = ElasticConfig(microbatches_per_step=4, snapshot_every=1, snapshot_copies=1, snapshot_keep=2)
    made = Vaults(elastic, "a", {"node": room * STATE}, pinned=pinned)
    made.hear(Heard("r0", Hello("r0", 1, "node")), 0.0)
    made.hear(Heard("r0", Ready("r0", {}, 9, {}, STATE)), 0.0)
    return made


@pytest.mark.parametrize(("room", "pinned"), [(6, PINNED), (3, 0)])
def test_all_that_may_be_there_at_once_fits(room: int, pinned: int) -> None:
    held = vaults(room, pinned)
    assert held.begin() == (None, [])
    assert f"they need {room}.0 MiB of each of 1 nodes" in held.line
    held.keep(Marks((4,)))
    assert held._copies.holdings.marks == (Marks((4,)) if pinned else Marks())


def test_where_only_the_newest_fit_that_is_said() -> None:
    held = vaults(5)
    refused, (warned,) = held.begin()
    assert refused is None
    assert isinstance(warned, Warned)
    assert warned.text.startswith("snapshots need 6.0 MiB of node node (6 of 1.0 MiB")
    assert warned.text.endswith("so none are kept until they are known to be right")
    held.keep(Marks((4,)))
    assert held._copies.holdings.marks == Marks()
    assert "they need 3.0 MiB" in held.line


def test_where_nothing_fits_the_run_is_refused() -> None:
    refused, orders = vaults(2).begin()
    assert str(refused).startswith("snapshots need 3.0 MiB of node node (3 of 1.0 MiB")
    assert orders == []

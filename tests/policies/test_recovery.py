"""What is done about a loss."""

import pytest
from everstep.policies.costs import Costs, delay
from everstep.policies.recovery import (
    Auto,
    RecoveryPolicy,
    Restart,
    Shrink,
    Swap,
    recovery_policy,
)
from everstep.policies.remedies import LossFacts, Option, Remedy, possible
from hypothesis import given
from hypothesis import strategies as st

from .losses import loss, losses

COSTS = Costs(microbatch=1.0, detect=0.25, rebuild=0.25)
patiences = st.sampled_from([0.0, 100.0, 1000.0])


@pytest.mark.parametrize(
    ("members", "survivors", "minimum", "remedy", "reason"),
    [
        (4, 3, 1, Remedy.SHRINK, "3 of 4 replicas go on"),
        (4, 1, 1, Remedy.SHRINK, "1 of 4 replicas go on"),
        (4, 2, 2, Remedy.SHRINK, "2 of 4 replicas go on"),
        (4, 4, 1, Remedy.REFORM, "nobody is lost"),
        (1, 1, 1, Remedy.REFORM, "nobody is lost"),
        (4, 1, 2, Remedy.END, "1 of 4 replicas are left, the minimum is 2"),
        (4, 0, 1, Remedy.END, "all 4 replicas are lost"),
        (4, 0, 2, Remedy.END, "all 4 replicas are lost"),
        # Whoever trains below the minimum was let in by mistake; no loss is needed to say so.
        (2, 2, 3, Remedy.END, "the minimum is 3"),
    ],
)
def test_the_answer_to_a_loss_when_nobody_is_waited_for(
    members: int, survivors: int, minimum: int, remedy: Remedy, reason: str
) -> None:
    decision = Shrink().decide(LossFacts(members, survivors, minimum))
    assert decision.remedy is remedy
    assert reason in decision.reason


TWO_BROKEN = loss(3, 1, ranks_per_replica=2, broken=(frozenset({0}), frozenset({1})))


@pytest.mark.parametrize(
    ("policy", "facts", "remedy"),
    [
        (Swap(), loss(spares=1, vault_step=100), Remedy.SWAP),
        (Swap(), loss(vault_step=100), Remedy.SHRINK),
        (Swap(), TWO_BROKEN, Remedy.COMPLETE),
        (Swap(), loss(survivors=4, spares=1), Remedy.REFORM),
        (Swap(60.0), loss(survivors=1, minimum=2, vault_step=100), Remedy.WAIT),
        (Swap(60.0), loss(survivors=0, room=1, vault_step=100), Remedy.RESTORE_VAULT),
        (Swap(60.0), loss(survivors=0, vault_step=100), Remedy.WAIT),
        (Shrink(), loss(spares=1, vault_step=100), Remedy.SHRINK),
        (Shrink(), loss(survivors=1, minimum=2, spares=1), Remedy.SWAP),
        (Shrink(), loss(3, 1, 2, ranks_per_replica=2, broken=TWO_BROKEN.broken), Remedy.COMPLETE),
        (Shrink(60.0), loss(survivors=1, minimum=2), Remedy.WAIT),
        (Shrink(), loss(survivors=0, spares=1, storage_step=7), Remedy.RESTORE_STORAGE),
        (Restart(), loss(spares=1, vault_step=90, storage_step=80), Remedy.RESTORE_VAULT),
        (Restart(), loss(spares=1, vault_step=90, storage_step=95), Remedy.RESTORE_STORAGE),
        (Restart(), loss(spares=1), Remedy.SHRINK),
        (Restart(), loss(survivors=1, minimum=2, spares=1), Remedy.SWAP),
        (Restart(), loss(survivors=4, vault_step=90), Remedy.REFORM),
        (Restart(60.0), loss(survivors=0), Remedy.END),
    ],
)
def test_a_fixed_policy_has_its_order(policy: RecoveryPolicy, facts: LossFacts, remedy: Remedy) -> None:
    decision = policy.decide(facts)
    assert decision.remedy is remedy
    assert decision.predictions == {}


def test_auto_swaps_if_the_run_is_long_and_shrinks_if_it_is_almost_over() -> None:
    facts = loss(spares=1, replacement_rate=0.01)
    decision = Auto(COSTS).decide(facts)
    assert decision.remedy is Remedy.SWAP
    assert decision.option == Option(4, 1, 1)
    assert decision.predictions == {"swap": pytest.approx(3.5), "shrink": pytest.approx(4.5)}
    assert decision.reason == (
        "swap: 3.5 s against 4.5 s for shrink over the next 600 s "
        "(4 of 4 replicas go on, 1 of them completed by spares)"
    )
    last = Auto(COSTS).decide(loss(spares=1, replacement_rate=0.01, remaining_steps=1))
    assert last.remedy is Remedy.SHRINK
    assert last.reason == "shrink: 2.5 s against 3.5 s for swap over the next 2 s (3 of 4 replicas go on)"


def test_auto_shrinks_if_the_slowest_replica_computes_no_more_than_before() -> None:
    """Eight microbatches are two for the busiest of 7 replicas, and of 5."""
    decision = Auto(COSTS).decide(loss(7, 5, spares=2, remaining_steps=1))
    assert decision.remedy is Remedy.SHRINK
    assert decision.predictions["shrink"] == pytest.approx(1.5)


def test_auto_says_it_if_there_is_no_choice() -> None:
    decision = Auto(COSTS).decide(loss(survivors=4, lost_microbatches=0))
    assert decision.reason == "reform: 0.5 s over the next 600 s (nobody is lost: the same members form a new group)"


def test_auto_takes_a_snapshot_rather_than_an_old_checkpoint() -> None:
    decision = Auto(COSTS).decide(loss(survivors=0, room=4, vault_step=97, storage_step=98))
    assert decision.remedy is Remedy.RESTORE_VAULT
    assert decision.predictions["restore from vault"] == pytest.approx(14.5)
    # One step of two seconds less to do again, but 18 s more to read.
    assert decision.predictions["restore from storage"] == pytest.approx(30.5)


def test_of_equals_auto_keeps_the_world() -> None:
    decision = Auto(COSTS).decide(loss(7, 6, spares=1, state_bytes=0))
    assert decision.predictions["swap"] == decision.predictions["shrink"]
    assert decision.remedy is Remedy.SWAP


@given(losses(), patiences, st.sampled_from([0.0, 60.0, 3600.0]))
def test_auto_takes_the_smallest_of_all_predictions(facts: LossFacts, patience: float, horizon: float) -> None:
    decision = Auto(COSTS, horizon, patience).decide(facts)
    options = possible(facts, patience)
    assert set(decision.predictions) == set(map(str, options))
    for remedy, option in options.items():
        assert decision.predictions[remedy] == delay(facts, option, COSTS, horizon, patience)
    if options:
        assert decision.option == options[decision.remedy]
        assert decision.predictions[decision.remedy] == min(decision.predictions.values())
    else:
        assert decision.remedy is Remedy.END


@given(losses(), patiences, st.sampled_from(["auto", "swap", "shrink", "restart"]))
def test_every_policy_decides_something_possible_and_says_why(facts: LossFacts, patience: float, name: str) -> None:
    decision = recovery_policy(name, COSTS, patience=patience).decide(facts)
    options = possible(facts, patience)
    assert decision.reason
    assert "\n" not in decision.reason
    if options:
        assert decision.option == options[decision.remedy]
    else:
        assert (decision.remedy, decision.option) == (Remedy.END, None)
    if decision.remedy is Remedy.WAIT:
        assert decision.deadline == patience - facts.waited > 0
    else:
        assert decision.deadline is None


@given(losses(), st.sampled_from(["auto", "swap", "shrink", "restart"]))
def test_no_wait_is_for_ever(facts: LossFacts, name: str) -> None:
    """Asked again when a deadline is over, and nothing has changed, every policy ends."""
    policy = recovery_policy(name, COSTS, patience=700.0)
    decision = policy.decide(facts)
    if decision.remedy is Remedy.WAIT:
        assert decision.deadline is not None
        waited = LossFacts(**{**vars(facts), "waited": facts.waited + decision.deadline})
        decision = policy.decide(waited)
        assert decision.remedy is Remedy.END
        assert "waited 700 s for " in decision.reason


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (loss(survivors=1, minimum=3), "1 of 4 replicas are left, the minimum is 3"),
        (
            loss(survivors=1, minimum=3, waited=600.0),
            "1 of 4 replicas are left, the minimum is 3; waited 600 s for 2 more",
        ),
        (loss(survivors=0), "all 4 replicas are lost"),
        (loss(survivors=0, spares=2, room=2), "all 4 replicas are lost"),
        (loss(survivors=0, vault_step=1), "all 4 replicas are lost"),
        (loss(survivors=0, vault_step=1, waited=60.0), "all 4 replicas are lost; waited 60 s for 1 more"),
        (
            loss(survivors=0, minimum=2, spares=1, vault_step=1),
            "1 of 4 replicas are left, the minimum is 2",
        ),
        (
            loss(3, 0, ranks_per_replica=4, broken=(frozenset({1, 2}), frozenset({2, 3})), waited=60.0),
            "no rank at coordinates [2] lives, and there is neither a snapshot nor a checkpoint",
        ),
    ],
)
def test_the_end_has_a_reason(facts: LossFacts, reason: str) -> None:
    for policy in (Swap(), Shrink(), Restart(), Auto(COSTS, patience=0.0)):
        decision = policy.decide(facts)
        assert (decision.remedy, decision.reason) == (Remedy.END, reason)
        assert decision.predictions == {}


def test_policies_have_names() -> None:
    assert recovery_policy("auto", COSTS, 60.0, 7.0) == Auto(COSTS, 60.0, 7.0)
    assert recovery_policy("swap", COSTS, 60.0, 7.0) == Swap(7.0)
    assert recovery_policy("shrink", COSTS, 60.0, 7.0) == Shrink(7.0)
    assert recovery_policy("restart", COSTS, 60.0, 7.0) == Restart(7.0)
    with pytest.raises(ValueError, match="unknown recovery policy 'pray'; use one of: auto, swap, shrink, restart"):
        recovery_policy("pray", COSTS)


@pytest.mark.parametrize("value", [-1.0, float("inf"), float("nan")])
def test_patience_is_bounded(value: float) -> None:
    with pytest.raises(ValueError, match="patience="):
        Swap(value)
    with pytest.raises(ValueError, match="patience="):
        Auto(COSTS, patience=value)
    with pytest.raises(ValueError, match="horizon="):
        Auto(COSTS, horizon=value)


def test_auto_needs_to_know_what_things_cost() -> None:
    with pytest.raises(ValueError, match=r"auto cannot decide without costs; see given\(\)"):
        Auto().decide(loss(members=3, survivors=2))
    assert Auto().given(Costs(1.0)).decide(loss(members=3, survivors=2)).remedy is Remedy.SHRINK

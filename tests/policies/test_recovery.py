"""What is done about a loss."""

import pytest
from everstep.policies.recovery import LossFacts, Remedy, decide


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
def test_the_answer_to_a_loss(members: int, survivors: int, minimum: int, remedy: Remedy, reason: str) -> None:
    decision = decide(LossFacts(members, survivors, minimum))
    assert decision.remedy is remedy
    assert reason in decision.reason

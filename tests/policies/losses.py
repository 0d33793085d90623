"""Losses to answer: a strategy for any, and a maker of plain ones."""

from typing import Any

from everstep.policies.remedies import LossFacts
from hypothesis import strategies as st


def loss(members: int = 4, survivors: int = 3, minimum: int = 1, **facts: Any) -> LossFacts:
    """Four replicas, one of them lost, 8 microbatches of which it held 2; 2 GB of state; step 100."""
    held: dict[str, Any] = {"microbatches": 8, "lost_microbatches": 2, "state_bytes": 2_000_000_000, "step": 100}
    return LossFacts(members, survivors, minimum, **{**held, **facts})


@st.composite
def losses(draw: st.DrawFn) -> LossFacts:
    """Any loss: whole replicas, parts of replicas, everything, nothing."""
    ranks = draw(st.integers(1, 4))
    members = draw(st.integers(1, 6))
    survivors = draw(st.integers(0, members))
    parts = st.frozensets(st.integers(0, ranks - 1), min_size=1, max_size=max(1, ranks - 1))
    broken = draw(st.lists(parts, max_size=members - survivors)) if ranks > 1 else []
    step = draw(st.integers(0, 50))
    microbatches = draw(st.integers(1, 12))
    saved = st.none() | st.integers(0, step)
    return LossFacts(
        members=members,
        survivors=survivors,
        minimum=draw(st.integers(1, 5)),
        ranks_per_replica=ranks,
        broken=tuple(broken),
        spares=draw(st.integers(0, 6)),
        room=draw(st.integers(0, 4)),
        replacement_rate=draw(st.sampled_from([0.0, 0.01, 1.0])),
        waited=draw(st.sampled_from([0.0, 50.0, 500.0])),
        step=step,
        remaining_steps=draw(st.none() | st.integers(0, 1000)),
        microbatches=microbatches,
        lost_microbatches=draw(st.integers(0, microbatches)),
        state_bytes=draw(st.sampled_from([0, 10**6, 10**10])),
        vault_step=draw(saved),
        storage_step=draw(saved),
    )

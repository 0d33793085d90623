"""What each rank adds to a sum is compared before it is summed, and whoever stays far above the others is named."""

import sys
from pathlib import Path
from typing import Any

import everstep
import torch
from everstep.orchestrator.view import Phase
from ray import cloudpickle

from .drive import launch
from .pieces import Samples, mlp, mse

cloudpickle.register_pickle_by_value(sys.modules[__name__])

TIMES = 1000.0


def too_large_on_one_rank(ctx: Any) -> None:
    torch.manual_seed(0)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    data = everstep.Microbatches(Samples(), size=3)
    for step in ctx.begin(model=model, optimizer=optimizer, data=data, steps=6):
        for batch in step:
            step.backward(mse(model, batch) * (TIMES if ctx.replica == ctx.config["wrong"] else 1.0))
        optimizer.step()


def test_a_rank_whose_gradients_are_far_too_large_is_named(tmp_path: Path) -> None:
    for wrong in (1, None):
        config = {"wrong": wrong}
        # Without a probe nothing is computed twice: the bits of a gradient tell nothing.
        outcome = launch(too_large_on_one_rank, tmp_path / str(wrong), config=config, check_every=1, probe=False)
        state = outcome.state
        assert state.phase is Phase.SUCCEEDED, (state.error, state.traceback)
        assert state.recoveries == ()
        assert [verdict.who for verdict in state.verdicts] == ([("rank 1.0",)] if wrong is not None else [])
        for verdict in state.verdicts:
            assert "far larger" in verdict.reason
            assert TIMES / 10 < verdict.evidence["rank 1.0"] / verdict.evidence["rank 0.0"] < TIMES * 10

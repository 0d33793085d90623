"""A rank that evaluates while the others train is named, and nobody trains on without it."""

import sys
from pathlib import Path
from typing import Any

from ray import cloudpickle

from .drive import refused
from .test_misuse import loop, validation

cloudpickle.register_pickle_by_value(sys.modules[__name__])
cloudpickle.register_pickle_by_value(sys.modules[loop.__module__])


def evaluates_on_one_rank(ctx: Any) -> None:
    def between(step: Any, run: Any, ctx: Any) -> None:
        if ctx.replica == 0:
            run.evaluate(validation(), lambda batch: {"loss": 1.0})

    loop(ctx, between=between)


def test_every_rank_must_evaluate_alike(tmp_path: Path) -> None:
    assert "every rank must call run.evaluate alike" in refused(evaluates_on_one_rank, tmp_path, ranks=3)

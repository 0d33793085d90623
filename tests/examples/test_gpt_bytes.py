"""The demonstration of the README, made small, and the same with a mixture of experts."""

from collections.abc import Callable
from typing import Any

import pytest
from everstep.examples import gpt_bytes, moe_bytes

from .local import both, read


@pytest.mark.parametrize(("file", "train"), [("gpt_bytes.yaml", gpt_bytes.train), ("moe_bytes.yaml", moe_bytes.train)])
def test_kills_change_nothing(file: str, train: Callable[[Any], object]) -> None:
    run = read(
        file,
        [
            "config.steps=4",
            "config.model={layers: 1, width: 32, heads: 2, block: 32, dropout: 0.1}",
            "scaling.ranks=[1, 3]",
            "elastic.chaos[0].step=1",
            "elastic.chaos[1].step=2",
            "elastic.chaos[1].replica=2",
        ],
    )
    disturbed, undisturbed = both(run, train)
    assert disturbed["weights_sha256"] == undisturbed["weights_sha256"]
    assert disturbed["loss"] == undisturbed["loss"]

"""The demonstration of the README, made small."""

from everstep.examples import gpt_bytes

from .local import both, read


def test_kills_change_nothing() -> None:
    run = read(
        "gpt_bytes.yaml",
        [
            "config.steps=4",
            "config.model={layers: 1, width: 32, heads: 2, block: 32, dropout: 0.1}",
            "scaling.ranks=[1, 3]",
            "elastic.chaos[0].step=1",
            "elastic.chaos[1].step=2",
            "elastic.chaos[1].replica=2",
        ],
    )
    disturbed, undisturbed = both(run, gpt_bytes.train)
    assert disturbed["weights_sha256"] == undisturbed["weights_sha256"]
    assert disturbed["loss"] == undisturbed["loss"]

"""A foreground run ends with its driver; nothing of it is left on the cluster."""

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator

import pytest
import ray
from everstep.benchmarks.raylets import raylets
from everstep.orchestrator.names import NAMESPACE
from ray.cluster_utils import Cluster

pytestmark = pytest.mark.ray

DRIVER = """
import sys, ray, everstep
from ray.train import RunConfig, ScalingConfig

def train(ctx):
    import time, torch
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = everstep.Microbatches(torch.zeros(8, 2), size=1)
    for step in ctx.begin(model=model, optimizer=optimizer, data=data, steps=10**6):
        for batch in step:
            step.backward(model(batch).mean())
        optimizer.step()
        time.sleep(0.01)

ray.init(address=sys.argv[1], log_to_driver=False)
everstep.ElasticTrainer(
    train,
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(name="abandoned", storage_path=sys.argv[2]),
    elastic_config=everstep.ElasticConfig(microbatches_per_step=2),
).fit()
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with raylets(4) as cluster:
        yield cluster


def actors() -> list[str]:
    named = ray.util.list_named_actors(all_namespaces=True)
    return [entry["name"] for entry in named if entry["namespace"] == NAMESPACE]


def test_a_run_ends_when_its_driver_is_killed(cluster: Cluster, tmp_path: object) -> None:
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, cluster.address, str(tmp_path)])
    try:
        _until(lambda: _training("abandoned"), 60.0)
        # Ranks begin with a number; beside them there are the controller, and what belongs to the node.
        kinds = Counter(name.partition("/")[2].partition("-")[0] for name in actors())
        assert sum(count for kind, count in kinds.items() if kind.isdigit()) == 2
        assert kinds["controller"] == kinds["sentinel"] == 1
    finally:
        driver.kill()
        driver.wait()
    killed = time.monotonic()
    _until(lambda: not actors(), 30.0)
    assert time.monotonic() - killed < 12.0


def _training(run: str) -> bool:
    from everstep import connect
    from everstep.conf.errors import RunNotFoundError

    try:
        return connect(run).state().step > 3
    except RunNotFoundError:
        return False


def _until(condition: object, patience: float) -> None:
    """Poll with a deadline: the condition lies in other processes."""
    deadline = time.monotonic() + patience
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.05)

"""A Ray cluster of several raylets on this machine, to which this process is connected."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import ray
from everstep.orchestrator.connect import HEALTH_CHECKS
from ray.cluster_utils import Cluster


@contextmanager
def raylets(*cpus: int) -> Iterator[Cluster]:
    """One raylet for each number of CPUs; the first one is the head."""
    os.environ.update({"RAY_AUTH_MODE": "disabled", **HEALTH_CHECKS})
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": cpus[0], "include_dashboard": False})
    for more in cpus[1:]:
        cluster.add_node(num_cpus=more)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    try:
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()

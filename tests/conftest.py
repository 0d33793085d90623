"""What holds for all tests."""

import os
from multiprocessing import forkserver

import pytest
from everstep.orchestrator.local_cluster import context
from hypothesis import settings

# A shared machine may stop for longer than any example takes. The same code is tested with the same examples;
# ``--hypothesis-profile=explore`` looks for others.
settings.register_profile("everstep", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, derandomize=False)
settings.load_profile("everstep")


@pytest.fixture(scope="session", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Runs leave a note of where they lie, also those of other processes."""
    os.environ["EVERSTEP_HOME"] = str(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="session", autouse=True)
def ranks_begin_with_torch_loaded(home: None) -> None:
    """There is one forkserver in a process: if workers of a loader start it first, every rank loads all by itself."""
    context()
    forkserver.ensure_running()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-scenarios", action="store_true", help="write into tests/orchestrator/scenarios what really happens"
    )

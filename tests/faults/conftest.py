"""Undisturbed runs, to which every scenario is compared."""

import pytest

from .harness import NARROW, WIDE, Outcome, run


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return run(tmp_path_factory.mktemp("undisturbed"), ranks=4, width=NARROW)


@pytest.fixture(scope="session")
def undisturbed_wide(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return run(tmp_path_factory.mktemp("undisturbed_wide"), ranks=4, width=WIDE)

"""One undisturbed run, to which every scenario is compared."""

import pytest

from .harness import Outcome, run


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return run(tmp_path_factory.mktemp("undisturbed"), ranks=4)

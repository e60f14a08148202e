"""The study that corrections and causes of misses are about."""

import pytest

from planner.domain.study import Study
from tests.planner.domain.replay.test_replay import study


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return study(tmp_path_factory.mktemp("study"))

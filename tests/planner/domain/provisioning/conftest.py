"""These tests look at what is planned and told, not at attainments to a hundredth."""

from collections.abc import Iterator

import pytest

from tests.planner.coarse import coarse_replays


@pytest.fixture(scope="module", autouse=True)
def _coarse_replays() -> Iterator[None]:
    with coarse_replays():
        yield

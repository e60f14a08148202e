"""Data that more than one test reads; nothing here needs a database."""

import pytest

from planner.domain.traffic.sources import StoredTrace
from tests.planner.domain.builders import ingested
from tests.shared_folder import TRACES, shared


@pytest.fixture(scope="session")
def azure_week(tmp_path_factory: pytest.TempPathFactory) -> StoredTrace:
    """Azure 2024, both services, requests per 10 s."""
    file = shared(TRACES / "azure2024_requests_10s.csv.gz")
    return ingested(file, "demand", tmp_path_factory.mktemp("azure") / "store")

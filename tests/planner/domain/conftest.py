"""Data that more than one test reads; nothing here needs a database."""

import pytest

from planner.domain.traffic.sources import StoredTrace
from tests.planner.domain.builders import ingested
from tests.shared_folder import TRACES, shared


@pytest.fixture(scope="session")
def azure_week(tmp_path_factory: pytest.TempPathFactory) -> StoredTrace:
    """Azure 2024, both services, requests per 10 s."""
    return _shared("azure2024_requests_10s.csv.gz", "demand", tmp_path_factory)


@pytest.fixture(scope="session")
def azure_hour(tmp_path_factory: pytest.TempPathFactory) -> StoredTrace:
    """Azure 2023 conversations, request by request."""
    return _shared("azure2023_conv.csv.gz", "requests", tmp_path_factory)


def _shared(name: str, kind: str, folders: pytest.TempPathFactory) -> StoredTrace:
    return ingested(shared(TRACES / name), kind, folders.mktemp("azure") / "store")

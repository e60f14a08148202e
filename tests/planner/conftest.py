"""People, a scenario, a trace, a completed run, and sizes that take little time."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
from rest_framework.test import APIClient

from planner.models import Run, Scenario, Trace, User
from planner.services.scenarios import scenario_create
from planner.storage import row_arrays
from tests.planner.coarse import coarse_sizes
from tests.planner.management.calling import folder as folder  # a fixture
from tests.planner.samples import DOCUMENT, RESULT, START, client_of, demand_table


@pytest.fixture(scope="module", autouse=True)
def coarse_by_default() -> Iterator[None]:
    """Few requests per size; what an instance carries, tests of the simulator prove."""
    with coarse_sizes():
        yield


def _user(name: str, role: str) -> User:
    return User.objects.create_user(name, password=f"{name}-secret", role=role)


@pytest.fixture
def planner(db: None) -> User:
    return _user("pia", User.Role.PLANNER)


@pytest.fixture
def colleague(db: None) -> User:
    return _user("carl", User.Role.PLANNER)


@pytest.fixture
def viewer(db: None) -> User:
    return _user("vera", User.Role.VIEWER)


@pytest.fixture
def admin(db: None) -> User:
    return _user("ada", User.Role.ADMIN)


@pytest.fixture
def approver(db: None) -> User:
    return User.objects.create_user("anna", role=User.Role.APPROVER)


@pytest.fixture
def api(planner: User) -> APIClient:
    return client_of(planner)


@pytest.fixture
def stranger(db: None) -> APIClient:
    return client_of(None)


@pytest.fixture
def reader(viewer: User) -> APIClient:
    return client_of(viewer)


@pytest.fixture
def scenario(planner: User) -> Scenario:
    return scenario_create(owner=planner, document=DOCUMENT)


@pytest.fixture
def trace(planner: User) -> Trace:
    """A row as a finished ingest leaves it; it has no columns."""
    return Trace.objects.create(
        name="conv",
        file_name="conv.csv.gz",
        sha256="c" * 64,
        bytes=1234,
        state=Trace.State.READY,
        kind=Trace.Kind.REQUESTS,
        format="azure",
        requests=19366,
        start_at=START,
        end_at=START + timedelta(hours=1),
        report={"trace": "conv.csv.gz", "rows": 19366, "clock": "utc"},
        owner=planner,
    )


@pytest.fixture
def completed(planner: User, scenario: Scenario) -> Run:
    """A comparison that is over, with one table of 1,200 rows."""
    run = Run.objects.create(
        kind=Run.Kind.COMPARE,
        state=Run.State.COMPLETED,
        scenario=scenario,
        name=scenario.name,
        document=scenario.document,
        progress=1.0,
        stage="Done",
        result=RESULT,
        store="runs/sample",
        owner=planner,
        started_at=START,
        finished_at=START + timedelta(minutes=1),
    )
    row_arrays.tables_write(run.store, {"demand": demand_table(1200)})
    return run

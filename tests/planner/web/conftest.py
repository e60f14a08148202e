"""A signed-in planner's browser, a scenario and a completed run for pages."""

import pytest
from django.test import Client

from planner.models import Run, Scenario, User
from planner.services.scenarios import scenario_create
from tests.planner.web.pages import signed_in
from tests.planner.web.study import DOCUMENT, completed_run


@pytest.fixture
def client(planner: User) -> Client:
    return signed_in(planner)


@pytest.fixture
def pools(planner: User) -> Scenario:
    return scenario_create(owner=planner, document=DOCUMENT)


@pytest.fixture
def study(planner: User) -> Run:
    return completed_run(planner)

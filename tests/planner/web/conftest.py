"""A signed-in planner's browser, a scenario and a completed run for pages."""

import logging
from collections.abc import Iterator
from dataclasses import is_dataclass

import pytest
from django.template import VariableDoesNotExist
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


class _UnknownFields(logging.Handler):
    """Collect the fields that templates read from results that lack them.

    Django shows nothing for such a field, so a renamed one would go unnoticed.
    """

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.found: set[tuple[str, str]] = set()

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, VariableDoesNotExist):
            field, value = error.params
            if is_dataclass(value):
                self.found.add((type(value).__name__, str(field)))


@pytest.fixture(autouse=True)
def _known_fields() -> Iterator[None]:
    logger, handler = logging.getLogger("django.template"), _UnknownFields()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield
    logger.setLevel(level)
    logger.removeHandler(handler)
    assert not handler.found, f"templates read fields that do not exist: {handler.found}"

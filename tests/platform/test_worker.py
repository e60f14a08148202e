"""The real worker and the real browser of the fixtures."""

import subprocess
import time
from typing import Any

import pytest

from planner.models import Run
from planner.services.runs import run_create


@pytest.mark.e2e
def test_the_worker_takes_a_run_from_this_database(
    celery_worker_process: subprocess.Popen[bytes],
) -> None:
    run = run_create(owner=None, kind=Run.Kind.PLAN, document="version: 1\nnonsense: 2\n")
    deadline = time.monotonic() + 180
    while not run.finished and time.monotonic() < deadline:
        time.sleep(0.1)
        run.refresh_from_db()
    assert run.state == Run.State.FAILED
    assert "nonsense" in run.problem
    assert run.attempts == 1


@pytest.mark.browser
def test_the_login_page_breaks_no_rule_of_the_browser(
    live_server: Any, page: Any, console: list[str]
) -> None:
    page.goto(f"{live_server.url}/login/")
    assert page.locator("input[name=password]").is_visible()
    assert page.locator("script[src]").count() > 0
    assert not console

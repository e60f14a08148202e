"""Fixtures for every kind of test. Nothing here needs Django until a test asks for it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.programs import CHROMIUM, find_program

ROOT = Path(__file__).parents[1]
WORKER_STARTS_WITHIN_S = 60.0
CHROMIUM_ARGUMENTS = [
    "--headless",
    "--no-sandbox",  # containers and root have none
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data beside the checkout."""
    folder = (ROOT / "../shared/data").resolve()
    if not folder.is_dir():
        pytest.skip("the real data of ../shared/data is not here")
    return folder


@pytest.fixture
def data_dir(settings: Any) -> Path:
    """The data directory of this test process and of the worker it starts."""
    return Path(settings.HEADROOM_DATA_DIR)


@pytest.fixture(scope="session")
def _worker(django_db_setup: None) -> Iterator[subprocess.Popen[bytes]]:
    """One real Celery worker for all tests of this process, on the test database."""
    from django.conf import settings

    ready = settings.HEADROOM_DATA_DIR / "worker-ready"
    log = settings.HEADROOM_DATA_DIR / "worker.log"
    environment = {**os.environ, "DATABASE_URL": _database_url(), "HEADROOM_WORKER_READY": ready}
    command = [sys.executable, "-m", "celery", "--app=planner.config.celery", "worker"]
    command += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    with log.open("wb") as output:
        worker = subprocess.Popen(
            command, env=environment, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        deadline = time.monotonic() + WORKER_STARTS_WITHIN_S
        while not ready.exists():
            if worker.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"the worker did not start:\n{log.read_text(errors='replace')}")
            time.sleep(0.1)
        yield worker
    finally:
        worker.terminate()
        try:
            worker.wait(timeout=10)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()


@pytest.fixture
def celery_worker_process(
    transactional_db: None, _worker: subprocess.Popen[bytes]
) -> subprocess.Popen[bytes]:
    """A running worker that takes the tasks this test sends; the test's writes are committed."""
    return _worker


def _database_url() -> str:
    """Where another process finds this process's test database."""
    from django.db import connection

    name = connection.settings_dict["NAME"]
    if connection.vendor == "sqlite":
        return f"sqlite:///{name}"
    return urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{name}").geturl()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """The system's Chromium, driven by Playwright."""
    from playwright.sync_api import sync_playwright

    chromium = find_program(*CHROMIUM)
    if chromium is None:
        pytest.skip("Chromium is not installed")
    # Playwright keeps an event loop in this thread, in which Django would refuse the database.
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM_ARGUMENTS)
        yield running
        running.close()
    del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]


@pytest.fixture
def console() -> list[str]:
    """Errors that the test's pages wrote to the console or threw: ``assert not console``."""
    return []


@pytest.fixture
def page(browser: Any, console: list[str], request: pytest.FixtureRequest) -> Iterator[Any]:
    """A fresh page without cookies; its picture is kept in var/ when the test fails."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, accept_downloads=True)
    context.set_default_timeout(15_000)  # ms
    page = context.new_page()
    page.on("console", lambda said: console.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: console.append(str(error)))
    yield page
    if getattr(request.node, "failed", False):
        pictures = ROOT / "var" / "failed-tests"
        pictures.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=pictures / f"{request.node.name}.png", full_page=True)
    context.close()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    if report.when == "call":
        item.failed = report.failed  # type: ignore[attr-defined]


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name bytes by their argument: compressed ones hold a time, so processes would not agree."""
    return argname if isinstance(val, bytes) else None

"""Fixtures for every kind of test. Nothing here needs Django until a test asks for it."""

import gc
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as examples

from tests.programs import CHROMIUM, CHROMIUM_ARGUMENTS, find_program
from tests.shared_folder import DATA, missed, shared

# The same examples everywhere and always, however slow the machine is.
examples.register_profile(
    "suite",
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
examples.load_profile("suite")

ROOT = Path(__file__).parents[1]
WORKER_STARTS_WITHIN_S = 180.0  # on a machine that has much else to do
WAITS_S = 150  # for what a page is to show, likewise
COARSE_WORKER = """
from celery.__main__ import main
from tests.planner.coarse import coarse_sizes
with coarse_sizes():
    main()
"""


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data beside the checkout."""
    return shared(DATA)


@pytest.fixture(autouse=True)
def _main_workspace() -> Iterator[None]:
    """Tests are about the workspace that is always there; found when something first asks."""
    if "django.apps" not in sys.modules or not sys.modules["django.apps"].apps.ready:
        yield
        return
    from planner.models.workspace import MAIN, use_workspace

    with use_workspace(MAIN):
        yield


@pytest.fixture(scope="session", autouse=True)
def repeat_a_flush_after_a_deadlock() -> Iterator[None]:
    """Empty the tables again if a worker of another test read them at the same moment."""
    if "django.apps" not in sys.modules or not sys.modules["django.apps"].apps.ready:
        yield
        return
    from django.core.management import CommandError
    from django.test import TransactionTestCase

    flush = TransactionTestCase._fixture_teardown

    def repeated(case: TransactionTestCase) -> None:
        for _ in range(5):
            with suppress(CommandError):
                flush(case)
                return
            time.sleep(1)
        flush(case)

    TransactionTestCase._fixture_teardown = repeated
    yield
    TransactionTestCase._fixture_teardown = flush


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """Let the test database be dropped, although a worker's child may still be connected to it."""
    yield
    from django.db import connection

    if connection.vendor == "postgresql":
        with django_db_blocker.unblock(), connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        # Not the connection that Django closes, if a browser's event loop still runs here.
        connection.close()


@pytest.fixture(scope="session", autouse=True)
def _emptied_with_its_audit_log() -> None:
    """SQLite is emptied row by row after a test that committed, which the audit log's guard would
    refuse; PostgreSQL truncates."""
    if "django.apps" not in sys.modules or not sys.modules["django.apps"].apps.ready:
        return
    from django.db import connection

    if connection.vendor != "sqlite":
        return
    from planner.services.audit import without_triggers

    kind = type(connection.ops)  # of every connection: a browser test has one of its own
    flush = kind.execute_sql_flush

    def emptied(self: Any, statements: list[str]) -> None:
        with without_triggers():
            flush(self, statements)

    kind.execute_sql_flush = emptied  # type: ignore[method-assign]


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
    environment = {**os.environ, "DATABASE_URL": database_url(), "HEADROOM_WORKER_READY": ready}
    arguments = ["--app=planner.config.celery", "worker"]
    arguments += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    command = [sys.executable, "-c", COARSE_WORKER, *arguments]
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


def database_url() -> str:
    """Where another process finds this process's test database."""
    from django.db import connection

    name = connection.settings_dict["NAME"]
    if connection.vendor == "sqlite":
        return f"sqlite:///{name}"
    return urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{name}").geturl()


class Chromium:
    """The system's Chromium, driven by Playwright, and started again where a test has lost it."""

    def __init__(self, executable: str) -> None:
        self._executable = executable
        self._driver: Any = None
        self._running: Any = None

    def context(self) -> Any:
        """A fresh window without cookies."""
        from playwright.sync_api import Error

        for last in (False, True):
            try:
                if self._running is None:
                    self._start()
                return self._running.new_context(
                    viewport={"width": 1280, "height": 900},
                    accept_downloads=True,
                    reduced_motion="reduce",  # a click on what still moves can miss it
                )
            except Error:
                self.stop()
                if last:
                    raise
        raise AssertionError("unreachable")

    def _start(self) -> None:
        from playwright.sync_api import sync_playwright

        self._driver = sync_playwright().start()
        self._running = self._driver.chromium.launch(
            executable_path=self._executable, args=CHROMIUM_ARGUMENTS
        )

    def stop(self) -> None:
        """What has been lost cannot be closed either."""
        for end in (self._running and self._running.close, self._driver and self._driver.stop):
            if end:
                with suppress(Exception):
                    end()
        self._driver = self._running = None


@pytest.fixture(scope="session")
def chromium() -> Iterator[Chromium]:
    executable = find_program(*CHROMIUM)
    if executable is None:
        pytest.skip("Chromium is not installed")
    from playwright.sync_api import expect

    expect.set_options(timeout=WAITS_S * 1000)
    # Playwright keeps an event loop in this thread, in which Django would refuse the database.
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"
    chromium = Chromium(executable)
    yield chromium
    chromium.stop()
    del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]


@pytest.fixture
def console() -> list[str]:
    """Errors that the test's pages wrote to the console or threw: ``assert not console``."""
    return []


@pytest.fixture
def page(chromium: Chromium, console: list[str], request: pytest.FixtureRequest) -> Iterator[Any]:
    """A fresh page; its picture is kept in var/ when the test fails."""
    context = chromium.context()
    context.set_default_timeout(WAITS_S * 1000)
    page = context.new_page()
    page.on(
        "console", lambda message: console.append(message.text) if message.type == "error" else None
    )
    page.on("pageerror", lambda error: console.append(str(error)))
    yield page
    with suppress(Exception):  # a lost browser fails the test that lost it, and no other
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


def pytest_configure() -> None:
    gc.disable()  # until all is imported: next to nothing of that is ever garbage


def pytest_collection_finish() -> None:
    """What was imported is not looked through again: a million objects, a quarter of a second each
    time."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files whose few tests take longest come first, so that no process is left with one alone."""
    slow = [
        ROOT / "tests" / place
        for place in (
            "platform",
            "browser",
            "bench",
            "simulation/provisioning",
            "planner/domain/kinds",
            "planner/test_permissions.py",
            "planner/api/test_contract.py",
            "planner/api/test_end_to_end.py",
            "planner/services/schedules/test_over_http.py",
            "planner/web/test_whatif.py",
        )
    ]
    tests = Counter(item.path for item in items)

    def turn(path: Path) -> tuple[bool, int, Path]:
        return not any(place in (path, *path.parents) for place in slow), -tests[path], path

    place = {path: number for number, path in enumerate(sorted(tests, key=turn))}
    items.sort(key=lambda item: place[item.path])


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name bytes by their argument: compressed ones hold a time, so processes would not agree."""
    return argname if isinstance(val, bytes) else None


def pytest_terminal_summary(terminalreporter: Any) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    if skipped_oracles := missed(str(report.longrepr) for report in skipped):
        terminalreporter.write_line(skipped_oracles, yellow=True)

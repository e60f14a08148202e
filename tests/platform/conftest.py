"""The embedded deployment in a folder of its own, as `bin/run` starts it."""

import os
import runpy
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from planner.config.environment import IN_FILES, NAMES

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment of the product without any server: SQLite and a queue in a fresh folder."""
    server_free = {
        name: value
        for name, value in os.environ.items()
        if name not in ("DATABASE_URL", "REDIS_URL", "SECRET_KEY", "DJANGO_ALLOW_ASYNC_UNSAFE")
    }
    folder = tmp_path_factory.mktemp("embedded") / "data"
    environment = server_free | {
        "DJANGO_SETTINGS_MODULE": "planner.config.settings",
        "HEADROOM_DATA_DIR": str(folder),
        "HEADROOM_WORKER_CONCURRENCY": "1",  # to start a second worker takes longer than its work
    }
    manage(environment, "migrate", "--verbosity=0", "--skip-checks")
    shutil.copytree(folder, folder.with_name("migrated"))
    return environment


@pytest.fixture
def another(embedded: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """The same in a folder of this test's own, with a copy of the empty database: to migrate takes
    longer than most of these tests. Not of ``embedded`` as tests left it, which may hold rows."""
    folder = tmp_path / "data"
    shutil.copytree(Path(embedded["HEADROOM_DATA_DIR"]).with_name("migrated"), folder)
    return embedded | {"HEADROOM_DATA_DIR": str(folder)}


@pytest.fixture
def new_database() -> Iterator[str]:
    """The address of an empty PostgreSQL database of this test's own, owned by a role that may not
    create others."""
    address = os.environ.get("DATABASE_URL", "")
    if not address.startswith("postgres"):
        pytest.skip("no PostgreSQL server")
    server, name = urlsplit(address), f"test_{secrets.token_hex(4)}"
    with psycopg.connect(server._replace(path="/postgres").geturl(), autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {name} LOGIN NOCREATEDB PASSWORD '{name}'")
        connection.execute(f"CREATE DATABASE {name} OWNER {name}")
        host = server.netloc.rpartition("@")[2]
        yield server._replace(netloc=f"{name}:{name}@{host}", path=f"/{name}").geturl()
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
        connection.execute(f"DROP ROLE {name}")


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """An environment with no setting but a data folder."""
    for name in set(os.environ) & {*NAMES, *IN_FILES}:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HEADROOM_DATA_DIR", str(tmp_path / "data"))
    return monkeypatch


def load() -> dict[str, Any]:
    """Run the settings again, as a fresh process would."""
    return runpy.run_path(str(ROOT / "planner/config/settings.py"))


def manage(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run manage.py to its end."""
    return subprocess.run(
        [sys.executable, "manage.py", *arguments],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )

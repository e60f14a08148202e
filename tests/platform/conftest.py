"""The embedded deployment in a folder of its own, as `bin/run` starts it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment of the product without any server: SQLite and a queue in a fresh folder."""
    server_free = {
        name: value
        for name, value in os.environ.items()
        if name not in ("DATABASE_URL", "REDIS_URL", "SECRET_KEY", "DJANGO_ALLOW_ASYNC_UNSAFE")
    }
    environment = server_free | {
        "DJANGO_SETTINGS_MODULE": "planner.config.settings",
        "HEADROOM_DATA_DIR": str(tmp_path_factory.mktemp("data")),
    }
    manage(environment, "migrate", "--verbosity=0")
    return environment


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

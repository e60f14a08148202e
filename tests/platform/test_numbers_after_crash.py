"""PostgreSQL is killed outright between runs, and their numbers follow each other all the same."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.servers import servers
from tests.platform.conftest import ROOT, manage

CREATE = """
import json, os, signal, django
django.setup()
from planner.models import Proposal, Run, Sweep
from planner.models.workspace import use_workspace
from planner.services.runs import run_create
with use_workspace("main"):
    run_create(owner=None, kind="plan", enqueue=False)
    Sweep.objects.create(name="s", kind="plan", document="", axes=[])
    Proposal.objects.create(title="p", policy="static")
    found = {kind.__name__: sorted(kind.objects.values_list("pk", flat=True))
             for kind in (Run, Sweep, Proposal)}
print(json.dumps(found), flush=True)
os.kill(os.getpid(), signal.SIGKILL)  # the connection is not closed in order either
"""


def test_numbers_do_not_jump_when_postgresql_is_killed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("DATABASE_URL", "REDIS_URL"):
        monkeypatch.setenv(name, "")  # set by servers(), put back at the end
    with servers() as made:
        environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "planner.config.settings",
            "HEADROOM_DATA_DIR": str(tmp_path),
        }
        assert manage(environment, "migrate", "--verbosity=0", "--skip-checks").returncode == 0
        for crashes in range(2):
            if crashes:
                made["database"].kill()
                made["database"].start()
            created = subprocess.run(
                [sys.executable, "-c", CREATE], env=environment, cwd=ROOT, stdout=subprocess.PIPE
            )
            expected = list(range(1, crashes + 2))
            assert json.loads(created.stdout) == dict.fromkeys(
                ("Run", "Sweep", "Proposal"), expected
            )

"""The script of docs/how-to/plan-on-a-schedule.md, run against the product."""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from django.core.cache import cache
from django.utils import timezone

from planner.models import Run, User
from planner.services.schedule_firings import schedules_tick
from planner.services.worker import run_execute

ROOT = Path(__file__).parents[4]
WITHIN_S = 240.0
TOOLS = all(map(shutil.which, ("bash", "curl", "jq")))


@pytest.mark.skipif(not TOOLS, reason="needs bash, curl and jq")
def test_the_script_of_the_docs(live_server):
    """Its worker and clock are this process: each run is carried out as it is asked for."""
    cache.clear()
    User.objects.create_user("anna", password="anna-secret", role=User.Role.APPROVER)
    environment = {"API": f"{live_server.url}/api/v1", "NAME": "anna", "PASSWORD": "anna-secret"}
    command = ["bash", "-euo", "pipefail", "docs/examples/schedule.sh"]
    with subprocess.Popen(
        command, cwd=ROOT, env=os.environ | environment,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as shell:  # fmt: skip
        until = time.monotonic() + WITHIN_S
        try:
            while shell.poll() is None and time.monotonic() < until:
                for run in Run.objects.filter(state=Run.State.PENDING):
                    run_execute(run_id=run.pk)
                schedules_tick(now=timezone.now())
                time.sleep(0.1)
        finally:
            shell.kill()
        printed = shell.communicate()[0]
    assert shell.returncode == 0, printed
    first, second, plan, paused, states, outcomes = map(json.loads, printed.splitlines()[:6])
    assert first == ["review", "No plan is active to compare it with."]
    assert second[0] == "approved" and second[1].startswith("Within the limits.")
    assert plan == ["2024-05-19T00:00:00Z", "2024-05-20T00:00:00Z"]
    assert (paused, states, outcomes) == (["Midnights", True], ["approved", "review"], 0)
    assert "Schedules fired 2 times" in printed

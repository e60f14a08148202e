"""What a stranger gets of a real web server: no byte of a body is read before the log-in."""

import json
import re
import subprocess
import sys
from pathlib import Path

from django.urls import NoReverseMatch, reverse

from planner.api.urls import urlpatterns as api_patterns
from planner.config.public_addresses import MAX_BODY_BYTES_SIGNED_OUT, PUBLIC
from planner.web.urls import urlpatterns as web_patterns

ROOT = Path(__file__).parents[2]


def test_no_address_reads_a_body_before_the_log_in() -> None:
    """50 MB for every address: as a stranger, with an unknown token, with an expired session."""
    command = [sys.executable, "-m", "bench.prelogin", "--json", "--seconds=0", "--methods=POST"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["addresses"] >= len(web_patterns) + len(api_patterns)
    assert figures["escapes"] == 0, done.stderr
    assert figures["bytes_read_before_login_max"] <= MAX_BODY_BYTES_SIGNED_OUT
    assert figures["bytes_read_after_login"] > MAX_BODY_BYTES_SIGNED_OUT  # what is read is counted


def test_the_threat_model_names_the_public_addresses() -> None:
    text = (ROOT / "docs/threat-model.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(/[^`]*)` \| (.+) \|$", text, re.M))
    assert rows.pop("/static/")
    assert rows == {path_of(view): what for view, what in PUBLIC.items()}


def path_of(view: str) -> str:
    try:
        return reverse(view)
    except NoReverseMatch:  # of an invitation
        return reverse(view, args=["USER", "TOKEN"])

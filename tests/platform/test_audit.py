"""Published advisories about what is installed are looked up where they can be reached."""

import os
import subprocess

from tests.platform.conftest import ROOT


def test_where_advisories_cannot_be_reached_it_says_so_and_fails_nothing() -> None:
    nowhere = "http://127.0.0.1:1/v1/query"
    listed = subprocess.run(
        [ROOT / "bin" / "audit"],
        env={**os.environ, "HEADROOM_ADVISORIES": nowhere},
        capture_output=True,
        text=True,
        check=True,
    )
    assert listed.stdout == (
        f"audit: skipped, since the advisories at {nowhere} cannot be reached from here\n"
    )

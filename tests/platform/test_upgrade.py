"""Every row that a version before had is there after an upgrade, as it was."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.platform.conftest import ROOT


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_an_upgrade_keeps_every_row(
    embedded: dict[str, str], tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    """Rows of every table of the first version and of two later ones, brought to this one."""
    environment = embedded | {"HEADROOM_DATA_DIR": str(tmp_path)}
    if kind == "postgresql":
        environment["DATABASE_URL"] = request.getfixturevalue("new_database")
    printed = subprocess.run(
        [sys.executable, "-m", "tests.platform.upgrade_app"],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    answer = json.loads(printed.stdout)
    assert answer["rows"] > 100
    assert answer["told"] == [
        "AuditHead.sha256 is gone",  # the log has no chain of hashes any more
        "AuditRecord.previous is gone",
        "AuditRecord.sha256 is gone",
        "User.role is gone",  # the membership has it
    ]

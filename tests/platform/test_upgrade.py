"""Every row that a version before had is there after an upgrade, as it was."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.platform.conftest import ROOT


def test_an_upgrade_keeps_every_row(embedded: dict[str, str], tmp_path: Path) -> None:
    """Rows of every table of the first version and of two later ones, brought to this one."""
    printed = subprocess.run(
        [sys.executable, "-m", "tests.platform.upgrade_app"],
        env=embedded | {"HEADROOM_DATA_DIR": str(tmp_path)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    answer = json.loads(printed.stdout)
    assert answer["rows"] > 100
    assert answer["told"] == ["User.role is gone"]  # what it said is of the membership

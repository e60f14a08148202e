"""Identify the code that computed a result."""

import subprocess
from functools import cache
from pathlib import Path

VERSION = "0.1.0"


@cache
def code_version() -> str:
    """Return the release and, in a checkout, the commit: "0.1.0+3f20c35"."""
    root = Path(__file__).parents[1]
    if not (root / ".git").exists():
        return VERSION
    done = subprocess.run(  # noqa: S603 - fixed arguments
        ["git", "-C", str(root), "rev-parse", "--short", "HEAD"],  # noqa: S607 - git of the PATH
        capture_output=True,
        text=True,
        check=False,
    )
    commit = done.stdout.strip()
    return f"{VERSION}+{commit}" if commit else VERSION

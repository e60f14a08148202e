"""Programs of the system that the tests need, wherever they are installed."""

import shutil
from pathlib import Path

CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
CHROMIUM_ARGUMENTS = [
    "--headless",
    "--no-sandbox",  # containers and root have none
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# Where packages put what they do not link into the PATH.
FOLDERS = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/usr/local/pgsql/bin")


def find_program(*names: str) -> str | None:
    """Path of the first of ``names`` that is installed, newest version first."""
    for name in names:
        if path := shutil.which(name):
            return path
        for pattern in FOLDERS:
            folders = Path("/").glob(pattern.lstrip("/"))
            for folder in sorted(folders, key=_version, reverse=True):
                if (folder / name).is_file():
                    return str(folder / name)
    return None


def _version(folder: Path) -> int:
    digits = "".join(filter(str.isdigit, str(folder)))
    return int(digits or 0)

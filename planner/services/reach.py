"""What sources may reach: addresses and folders that the operator's environment allows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.conf import settings

from planner.errors import SourceError
from planner.ingest.prometheus.address import allowed_address


def check_reach(kind: str, said: Any) -> None:
    """Raise SourceError where a source's settings lead outside the allow-lists."""
    if kind == "prometheus":
        allowed_address(said.url, settings.HEADROOM_SOURCES)
    elif kind == "folder":
        allowed_folder(said.path)


def allowed_folder(path: str) -> Path:
    """The folder, resolved, in one of HEADROOM_SOURCE_FOLDERS."""
    folder = Path(path).resolve()
    bases = [Path(base).resolve() for base in settings.HEADROOM_SOURCE_FOLDERS]
    if not Path(path).is_absolute() or not any(folder.is_relative_to(base) for base in bases):
        listed = ", ".join(map(str, bases)) or "none"
        raise SourceError(
            f"path: {path} is not in a folder that sources may read ({listed}); an operator adds "
            "it to HEADROOM_SOURCE_FOLDERS."
        )
    return folder

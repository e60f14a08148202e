"""Restrict what sources may reach: addresses, folders and secrets that the operator allows."""

import os
from pathlib import Path
from typing import Any

from django.conf import settings

from planner.errors import SourceError
from planner.inputs.live.bucket import BucketPlace
from planner.inputs.live.prometheus.address import allowed_address


def check_allowed(kind: str, source_settings: Any) -> None:
    """Raise SourceError if a source's settings refer to a place outside the allow-lists."""
    if kind == "prometheus":
        allowed_address(source_settings.url, settings.HEADROOM_SOURCES)
    elif kind == "folder":
        allowed_folder(source_settings.path)
    elif kind == "bucket":
        address = BucketPlace(
            source_settings.url, source_settings.bucket, source_settings.prefix
        ).address
        allowed_address(address.url, settings.HEADROOM_SOURCES)


def allowed_folder(path: str) -> Path:
    """Return the resolved folder; raise SourceError if it is outside HEADROOM_SOURCE_FOLDERS."""
    # Resolve links first: a link must not lead out of an allowed folder.
    folder = Path(path).resolve()
    bases = [Path(base).resolve() for base in settings.HEADROOM_SOURCE_FOLDERS]
    if not Path(path).is_absolute() or not any(folder.is_relative_to(base) for base in bases):
        listed = ", ".join(map(str, bases)) or "none"
        raise SourceError(
            f"path: {path} is no absolute path in a folder that sources may read ({listed}). An "
            "operator adds it to HEADROOM_SOURCE_FOLDERS."
        )
    return folder


def read_secret(field: str, variable: str) -> str:
    """Return the secret in the environment variable that the setting ``field`` names."""
    value = os.environ.get(variable, "").strip()
    if not value or not value.isprintable() or not value.isascii():
        raise SourceError(
            f"{field}: the environment has nothing usable in {variable}; an operator sets it where "
            "workers and web start."
        )
    return value

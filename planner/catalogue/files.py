"""The catalogue's YAML files."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

FOLDER = Path(__file__).parent


@cache
def read(name: str) -> Any:
    """A catalogue file, parsed once; callers only read it."""
    return YAML(typ="safe").load(FOLDER / f"{name}.yaml")

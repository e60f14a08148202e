"""Policies of the operator's own, by name: only classes that the installation lists may be loaded.

``HEADROOM_POLICIES`` in the environment holds ``name=package.module:Class``, several separated by
commas. A scenario says the name and parameters; it never says what code to run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from importlib import import_module
from typing import Any

from planner.errors import ScenarioError

SETTING = "HEADROOM_POLICIES"
ENTRY = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)=((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*:[A-Za-z_]\w*)")


def own_policies() -> dict[str, str]:
    """Dotted path by name; raises ScenarioError where the setting cannot be read."""
    listed = [part.strip() for part in os.environ.get(SETTING, "").split(",") if part.strip()]
    found: dict[str, str] = {}
    for entry in listed:
        match = ENTRY.fullmatch(entry)
        if match is None or match[1] in found:
            raise ScenarioError(
                f"{SETTING}: {entry!r} is not name=package.module:Class, each name once; "
                "correct it in the environment of web and worker."
            )
        found[match[1]] = match[2]
    return found


def own_policy(name: str) -> Callable[..., Any]:
    """The class listed under ``name``; raises ScenarioError where it cannot be imported."""
    path = own_policies()[name]
    module, _, attribute = path.partition(":")
    try:
        made: Callable[..., Any] = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as problem:
        raise ScenarioError(
            f"{SETTING}: {name!r} cannot be loaded from {path} ({problem}); correct the path, or "
            "install the package where the worker runs."
        ) from None
    return made

"""Read the names and dotted paths of the operator's own policies from HEADROOM_POLICIES.

This is separate from ``user_policies``, because settings check the list before any policy is
imported.
"""

import os
import re

from planner.errors import ScenarioError

SETTING = "HEADROOM_POLICIES"
ENTRY = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)=((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*:[A-Za-z_]\w*)")


def own_policies() -> dict[str, str]:
    """Return the dotted path of the class of each of the operator's policies, by policy name.

    Raise ScenarioError if an entry is malformed.
    """
    entries = [part.strip() for part in os.environ.get(SETTING, "").split(",") if part.strip()]
    paths: dict[str, str] = {}
    for entry in entries:
        match = ENTRY.fullmatch(entry)
        if match is None or match[1] in paths:
            raise ScenarioError(
                f"{SETTING}: {entry!r} is not name=package.module:Class, each name once. "
                "Correct it in the environment of web and worker."
            )
        paths[match[1]] = match[2]
    return paths

"""List the tabs of a long page; each has its own address (``#plan``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def result_tabs(shown: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the tabs of the results page that have content, by the ids in runs/results.html.

    ``shown`` is the context that ``results_context`` and the contexts of the other parts fill.
    """
    result = shown["result"]
    plan, forecast = result.get("plan"), (result.get("forecast") or {}).get("series")
    ahead = result.get("series") or shown.get("week_errors") or shown.get("moment_figure")
    sizes = result.get("capacity") or result.get("profile_error")
    tabs = {
        "answer": ("The answer", True),
        "policies": ("Policies", shown.get("policies")),
        "modules": ("Modules", shown.get("modules")),
        "plan": ("The plan", plan),
        "what-if": ("What-if", plan),
        "sizes": ("What one replica carries", sizes),
        "forecast": ("Forecast", forecast or ahead),
        "sources": ("Where the numbers come from", True),
    }
    return [(name, title) for name, (title, there) in tabs.items() if there]

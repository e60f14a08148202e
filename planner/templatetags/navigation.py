"""Build the menu of every page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django import template

register = template.Library()


@dataclass(frozen=True, slots=True)
class Section:
    """An entry of the menu, and whether the current page belongs to it."""

    page: str
    label: str
    icon: str
    active: bool


# Page, label, icon, and the prefixes of the names of the section's pages.
SECTIONS = (
    ("home", "Home", "home", ("home",)),
    ("traces", "Traces", "trace", ("trace", "source")),
    (
        "profiles",
        "Hardware & profiles",
        "gpu",
        (
            "profile",
            "gpu",
            "model",
            "hardware",
            "prices",
            "carbon",
            "estimate",
            "configure",
            "calibration",
        ),
    ),
    ("scenarios", "Scenarios", "scenario", ("scenario",)),
    ("size", "Sizing", "gauge", ("size",)),
    ("pd-ratio", "P/D ratio", "split", ("pd-ratio",)),
    ("runs", "Runs", "runs", ("run", "what-if")),
    ("proposals", "Proposals", "check", ("proposal", "review")),
    ("schedules", "Schedules", "clock", ("schedule", "outcome", "plan")),
)


@register.simple_tag(takes_context=True)
def navigation(context: dict[str, Any]) -> list[Section]:
    """Return the sections of the menu."""
    match = context["request"].resolver_match
    here = (match.url_name if match else None) or ""
    return [
        Section(f"web:{page}", label, icon, here.startswith(beginnings))
        for page, label, icon, beginnings in SECTIONS
    ]

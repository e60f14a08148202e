"""Build the menu of every page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django import template

from planner.selectors.places import NEEDS_PLANNER, PLACES, Job, Place

register = template.Library()


@dataclass(frozen=True, slots=True)
class Entry:
    """A place of the menu with its jobs, and whether the current page belongs to it."""

    place: Place
    jobs: tuple[Job, ...]
    active: bool
    here: str  # name of the current page


@register.simple_tag(takes_context=True)
def navigation(context: dict[str, Any]) -> list[Entry]:
    """Return the places of the menu, with the jobs that the user may do."""
    match = context["request"].resolver_match
    here = (match.url_name if match else None) or ""
    may_plan = context["user"].may_plan
    return [
        Entry(
            place,
            tuple(job for job in place.jobs if may_plan or job.page not in NEEDS_PLANNER),
            here.startswith(place.beginnings),
            here,
        )
        for place in PLACES
    ]

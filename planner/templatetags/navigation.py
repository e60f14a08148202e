"""Build the menu of every page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django import template

from planner.selectors.places import PLACES, Job, Place
from planner.services.access import jobs_of

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
    return [
        Entry(
            place,
            jobs_of(context["user"], place.jobs),
            here.startswith(place.beginnings),
            here,
        )
        for place in PLACES
    ]

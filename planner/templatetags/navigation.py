"""Build the menu of every page."""

from dataclasses import dataclass, replace
from typing import Any

from django import template
from django.urls import reverse

from planner.selectors.places import ACCOUNT, NEEDS_PLANNER, PLACES, Job, Place, help_of
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
    return [_entry(context, place) for place in PLACES]


@register.simple_tag(takes_context=True)
def account(context: dict[str, Any]) -> Entry:
    """Return the pages of the account and of the workspace's people that the user may open."""
    return _entry(context, ACCOUNT)


def _entry(context: dict[str, Any], place: Place) -> Entry:
    """Return a place of the menu with the jobs that the user may do."""
    here = _page(context)
    return Entry(
        place, jobs_of(context["user"], place.jobs), here.startswith(place.beginnings), here
    )


@register.simple_tag(takes_context=True)
def tabs(context: dict[str, Any]) -> Entry | None:
    """Return the place of the current page with its lists; None on pages below a list."""
    for entry in (*navigation(context), account(context)):
        lists = tuple(job for job in entry.jobs if job.page not in NEEDS_PLANNER)
        if len(lists) > 1 and any(job.page == entry.here for job in lists):
            return replace(entry, jobs=lists)
    return None


@register.simple_tag(takes_context=True)
def help_address(context: dict[str, Any]) -> str:
    """Return the address of the how-to of the current page, else of the list of all."""
    name = help_of(_page(context))
    return reverse("web:help-page", args=[name]) if name else reverse("web:help")


def _page(context: dict[str, Any]) -> str:
    """Return the name of the current page; "" without one."""
    match = context["request"].resolver_match
    return (match.url_name if match else None) or ""

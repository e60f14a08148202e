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
    """An entry of the menu, as the user may see it."""

    place: Place
    jobs: tuple[Job, ...]  # pages below the entry that the user may open
    active: bool  # whether the current page belongs to the entry
    here: str  # name of the current page


@register.simple_tag(takes_context=True)
def navigation(context: dict[str, Any]) -> list[Entry]:
    """Return the entries of the menu, with the pages that the user may open."""
    return [_entry(context, place) for place in PLACES]


@register.simple_tag(takes_context=True)
def account(context: dict[str, Any]) -> Entry:
    """Return the entry of the menu for the account and the workspace's people."""
    return _entry(context, ACCOUNT)


def _entry(context: dict[str, Any], place: Place) -> Entry:
    """Return ``place`` as an entry of the menu for the user and page of ``context``."""
    page = _page(context)
    jobs = jobs_of(context["user"], place.jobs)
    return Entry(place, jobs, active=page.startswith(place.beginnings), here=page)


@register.simple_tag(takes_context=True)
def tabs(context: dict[str, Any]) -> Entry | None:
    """Return the entry with the tabs of the current page, the lists beside it.

    None if the page is not a list of an entry that has several.
    """
    for entry in (*navigation(context), account(context)):
        lists = tuple(job for job in entry.jobs if job.page not in NEEDS_PLANNER)
        is_here = any(job.page == entry.here for job in lists)
        if is_here and len(lists) > 1:
            return replace(entry, jobs=lists)
    return None


@register.simple_tag(takes_context=True)
def help_address(context: dict[str, Any]) -> str:
    """Return the address of the how-to of the current page, else of the list of all."""
    name = help_of(_page(context))
    return reverse("web:help-page", args=[name]) if name else reverse("web:help")


def _page(context: dict[str, Any]) -> str:
    """Return the name of the current page's route; "" if it has none."""
    match = context["request"].resolver_match
    if match is None or match.url_name is None:
        return ""
    return str(match.url_name)

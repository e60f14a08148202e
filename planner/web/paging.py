"""Split long lists into pages."""

from collections.abc import Sequence
from typing import Any

from django.core.paginator import Page, Paginator
from django.db.models import QuerySet
from django.http import HttpRequest

PAGE_SIZE, SHORT = 25, 5  # rows


def page_of(request: HttpRequest, rows: QuerySet[Any] | Sequence[Any]) -> Page[Any]:
    """Return the page that the query string names, or the nearest one if it does not exist."""
    return Paginator(rows, PAGE_SIZE).get_page(request.GET.get("page"))


def is_short(page: Page[Any]) -> bool:
    """Return whether a list is one short page, with room for something below it."""
    return page.number == 1 and 0 < len(page) <= SHORT

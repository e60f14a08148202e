"""Long lists, a page at a time."""

from collections.abc import Sequence
from typing import Any

from django.core.paginator import Page, Paginator
from django.db.models import QuerySet
from django.http import HttpRequest

PAGE_SIZE = 25


def paged(request: HttpRequest, rows: QuerySet[Any] | Sequence[Any]) -> Page[Any]:
    """The page that the query string asks for, the nearest one where it does not exist."""
    return Paginator(rows, PAGE_SIZE).get_page(request.GET.get("page"))

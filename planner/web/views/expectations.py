"""Show how often the stated intervals contained the outcome."""

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from planner.selectors.expectations import COST, coverage, expectations
from planner.web.paging import paged
from planner.web.request import Request


@require_safe
def listing(request: Request) -> HttpResponse:
    """List the expectations of all comparisons, and count those whose interval was right."""
    stated = expectations()
    counts = [
        (name, inside, total, inside / total if total else None)
        for name, (inside, total) in coverage(stated).items()
    ]
    context = {"page": paged(request, stated), "counts": counts, "cost": COST}
    return render(request, "web/expectations.html", context)

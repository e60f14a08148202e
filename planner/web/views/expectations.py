"""Show how often the stated intervals contained the outcome."""

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from planner.selectors.expectations import COST, coverage, expectations
from planner.web.paging import paged
from planner.web.request import Request


@require_safe
def listing(request: Request) -> HttpResponse:
    """List the expectations of all comparisons of the workspace, and count those that held."""
    stated = expectations()
    counts = [
        (name, held, of, held / of if of else None) for name, (held, of) in coverage(stated).items()
    ]
    context = {"page": paged(request, stated), "counts": counts, "cost": COST}
    return render(request, "web/expectations.html", context)

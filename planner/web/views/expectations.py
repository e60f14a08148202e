"""Show how often the stated intervals contained the outcome."""

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from planner.selectors.expectations import COST, coverage, expectations, testable_scenario
from planner.web.paging import page_of
from planner.web.request import Request

STEPS = (  # shown while the list is empty
    ("1. Expected", "Past test days give a range for cost and SLO attainment.", ""),
    ("2. Actual", "The planned day is simulated with its real traffic.", ""),
    ("3. Result", "Each result is in range, better or worse. Expect about 80% in range.", ""),
)


@require_safe
def listing(request: Request) -> HttpResponse:
    """List the expectations of all comparisons, and count those whose interval was right."""
    stated = expectations()
    counts = []  # quantity, expectations in range, all, and the share in range
    for name, (inside, total) in coverage(stated).items():
        counts.append((name, inside, total, inside / total if total else None))
    context = {
        "page": page_of(request, stated),
        "counts": counts,
        "cost": COST,
        "choices": STEPS,
        "scenario": None if stated else testable_scenario(),
    }
    return render(request, "web/expectations.html", context)

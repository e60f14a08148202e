"""Compare runs at an address that can be shared: ``/runs/compare/?run=12&run=15``."""

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from planner.errors import PlannerError
from planner.models import Run
from planner.selectors.run_comparison import MIN_RUNS, runs_to_compare
from planner.selectors.runs import run_get, runs_list
from planner.web.pages.run_comparison import page_context
from planner.web.request import Request

OFFERED = 100  # newest completed runs to choose from


@require_safe
def compare(request: Request) -> HttpResponse:
    """Compare the runs that the URL names; if too few, show runs to choose from."""
    numbers = numbers_of(request.GET.getlist("run"))
    if len(numbers) < MIN_RUNS:
        # Offer other runs, those of the same scenario and kind first.
        first = run_get(numbers[0]) if numbers else None
        rows = runs_list().filter(state=Run.State.COMPLETED).exclude(kind=Run.Kind.INGEST)
        offered = list(rows.exclude(pk__in=numbers)[:OFFERED])
        if first is not None:
            offered.sort(key=lambda run: (run.name != first.name, run.kind != first.kind, -run.pk))
        context = {"first": first, "runs": offered, "choose": True}
        return render(request, "web/beside_choose.html", context)
    return render(request, "web/beside.html", page_context(runs_to_compare(numbers), request.GET))


def numbers_of(texts: list[str]) -> list[int]:
    """Return the run ids in all texts; a text may have several, separated by commas.

    Raises PlannerError for a value that is not a number.
    """
    words = [word.strip() for text in texts for word in text.split(",") if word.strip()]
    for word in words:
        if not (word.isascii() and word.isdecimal() and len(word) <= 9):
            raise PlannerError(f"run: {word[:40]!r} is not the number of a run.")
    return [int(word) for word in words]

"""Show the glossary page."""

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from planner.selectors.glossary import glossary
from planner.web.request import Request


@require_safe
def page(request: Request) -> HttpResponse:
    """Show every term of docs/glossary.md."""
    return render(request, "web/glossary.html", {"terms": glossary()})

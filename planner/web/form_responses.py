"""Answer the forms of the pages: with the result, with the errors, or with a file."""

from collections.abc import Callable
from typing import Any, TypeVar

from django import forms
from django.http import HttpResponse, JsonResponse
from django.shortcuts import redirect, render

from planner.errors import EXPECTED
from planner.web.request import Request

T = TypeVar("T")
CSV = "text/csv; charset=utf-8"


def attempt(form: forms.Form, save: Callable[[], T]) -> tuple[T | None, str]:
    """Return the result of ``save`` for a valid form, and the message of an expected error.

    For an invalid form, which shows its errors at its fields, they are None and "".
    """
    if not form.is_valid():
        return None, ""
    try:
        return save(), ""
    except EXPECTED as problem:
        return None, str(problem)


def go(request: Request, url: str) -> HttpResponse:
    """Lead the browser to ``url``; upload.js, which reads no redirects, gets it as JSON."""
    return JsonResponse({"url": url}) if _is_sent_by_script(request) else redirect(url)


def form_with_errors(
    request: Request, template: str, form: forms.Form, problem: str, **context: Any
) -> HttpResponse:
    """Show the form again with its errors and ``problem``; for upload.js, return only messages."""
    if _is_sent_by_script(request):
        faults = [
            f"{form[name].label}: {' '.join(map(str, errors))}"
            for name, errors in form.errors.items()
        ]
        return JsonResponse({"problem": "\n".join(faults) or problem}, status=400)
    return render(request, template, {"form": form, "problem": problem, **context}, status=400)


def attachment(content: str | bytes, media: str, name: str) -> HttpResponse:
    """Return a file to download, called ``name``, of media type ``media``."""
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return HttpResponse(content, content_type=media, headers=headers)


def _is_sent_by_script(request: Request) -> bool:
    """Return whether upload.js sent the request.

    The header must match exactly, since browsers accept any type.
    """
    return request.headers.get("Accept") == "application/json"

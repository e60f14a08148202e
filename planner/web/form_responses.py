"""Answer the forms of the pages: with the result, with the errors, or with a file."""

from collections.abc import Callable
from typing import Any, TypeVar

from django import forms
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render

from planner.errors import EXPECTED, FieldsRefused, status_of
from planner.web.request import Request, TemplateContext

T = TypeVar("T")
CSV = "text/csv; charset=utf-8"


def attempt(form: forms.Form, save: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """Call ``save`` for a valid form; return (its result, None), or (None, the expected error).

    The error of an invalid form is FieldsRefused, without a message.
    """
    if not form.is_valid():
        return None, FieldsRefused()
    try:
        return save(), None
    except EXPECTED as problem:
        return None, problem


def render_form(
    request: HttpRequest, template: str, context: TemplateContext, problem: Exception | None = None
) -> HttpResponse:
    """Show a page with a form; ``problem`` is the error for which the form was refused, if any.

    The page has its message, and the status with which the API answers it.
    """
    status = 200 if problem is None else status_of(problem)
    return render(request, template, {**context, "problem": str(problem or "")}, status=status)


def go(request: Request, url: str) -> HttpResponse:
    """Lead the browser to ``url``; upload.js, which reads no redirects, gets it as JSON."""
    return JsonResponse({"url": url}) if _is_sent_by_script(request) else redirect(url)


def form_with_errors(
    request: Request, template: str, form: forms.Form, problem: Exception | None, **context: Any
) -> HttpResponse:
    """Show the form again with its errors and ``problem``; for upload.js, return only messages."""
    if problem is not None and _is_sent_by_script(request):
        field_errors = [
            f"{form[name].label}: {' '.join(map(str, errors))}"
            for name, errors in form.errors.items()
        ]
        message = "\n".join(field_errors) or str(problem)
        return JsonResponse({"problem": message}, status=status_of(problem))
    return render_form(request, template, {"form": form, **context}, problem)


def attachment(content: str | bytes, media: str, name: str) -> HttpResponse:
    """Return a file to download, called ``name``, of media type ``media``."""
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return HttpResponse(content, content_type=media, headers=headers)


def _is_sent_by_script(request: Request) -> bool:
    """Return whether upload.js sent the request.

    The header must match exactly, since browsers accept any type.
    """
    return request.headers.get("Accept") == "application/json"

"""Show live sources: the list, a new one with a preview, one source and its readings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from planner.models import Source
from planner.selectors.sources import readings_list, source_gaps, source_get, sources_list
from planner.services.source_reading import source_preview, source_request_reading
from planner.services.sources import source_change, source_create, source_delete
from planner.web.errors import planners_only
from planner.web.form_responses import attempt
from planner.web.forms.sources import FORMS, PrometheusForm
from planner.web.pages.source import source_context
from planner.web.paging import paged
from planner.web.request import Request


@require_safe
def listing(request: Request) -> HttpResponse:
    page = paged(request, sources_list())
    rows = [(source, source_gaps(source)) for source in page]
    return render(request, "web/sources.html", {"page": page, "rows": rows})


@require_http_methods(["GET", "POST"])
@planners_only
def new(request: Request) -> HttpResponse:
    """Show the form for a source of one kind; preview its data, or create the source."""
    kind = FORMS.get(request.GET.get("kind", ""), PrometheusForm)
    context: dict[str, Any] = {"kinds": Source.Kind.choices, "kind": kind.kind}
    if request.method != "POST":
        return _form(request, kind(), context)
    form = kind(request.POST)
    if request.POST.get("do") == "look":
        preview, problem = attempt(
            form,
            lambda: source_preview(user=request.user, kind=form.kind, fields=form.settings()),
        )
        return _form(request, form, context | {"preview": preview, "problem": problem})
    source, problem = attempt(
        form,
        lambda: source_create(
            owner=request.user,
            name=form.cleaned_data["name"],
            kind=form.kind,
            settings=form.settings(),
            bin_s=form.cleaned_data["bin_s"],
        ),
    )
    if source is None:
        return _form(request, form, context | {"problem": problem}, status=400)
    return redirect("web:source", source.name)


@require_safe
def detail(request: Request, name: str) -> HttpResponse:
    source = source_get(name)
    page = paged(request, readings_list(source))
    context = {"source": source, "page": page, **source_context(source)}
    return render(request, "web/source.html", context)


@require_POST
def read(request: Request, name: str) -> HttpResponse:
    source_request_reading(source=source_get(name), user=request.user)
    messages.info(request, f"{name} is being read; this page shows it once it has been.")
    return redirect("web:source", name)


@require_POST
def pause(request: Request, name: str) -> HttpResponse:
    """Pause or resume a source."""
    paused = request.POST.get("paused") == "yes"
    source_change(source=source_get(name), user=request.user, changes={"paused": paused})
    messages.success(request, f"{name} is {'paused' if paused else 'read again'}.")
    return redirect("web:source", name)


@require_POST
def delete(request: Request, name: str) -> HttpResponse:
    source_delete(source=source_get(name), user=request.user)
    messages.success(request, f"Source {name} is removed with its data.")
    return redirect("web:sources")


def _form(
    request: Request, form: forms.Form, context: Mapping[str, Any], status: int = 200
) -> HttpResponse:
    return render(request, "web/source_new.html", {**context, "form": form}, status=status)

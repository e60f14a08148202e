"""Traces: the list, the upload, one trace, its removal."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from planner.errors import PlannerError
from planner.models import Run, Trace
from planner.selectors.traces import trace_get, traces_list
from planner.services import traces
from planner.web.errors import planners_only
from planner.web.forms.upload import UploadForm
from planner.web.pages.demand import trace_figures
from planner.web.paging import paged
from planner.web.request import Request


@require_safe
def listing(request: Request) -> HttpResponse:
    return render(request, "web/traces.html", {"page": paged(request, traces_list())})


@require_http_methods(["GET", "POST"])
@planners_only
def upload(request: Request) -> HttpResponse:
    """The form, and the file it sends. Scripts that ask for JSON get the next address or the
    sentence that says what is wrong."""
    if request.method != "POST":
        return render(request, "web/trace_upload.html", {"form": UploadForm()})
    form = UploadForm(request.POST, request.FILES)
    try:
        if not form.is_valid():
            return _refuse(request, form, "")
        file = form.cleaned_data["file"]
        trace, _, new = traces.trace_upload(
            owner=request.user, chunks=file.chunks(), file_name=file.name, options=form.options()
        )
    except PlannerError as problem:
        return _refuse(request, form, str(problem))
    if not new:
        messages.info(request, f"This file is here already, as {trace.name}; nothing was read.")
    return _go(request, reverse("web:trace", args=[trace.name]))


@require_safe
def detail(request: Request, name: str) -> HttpResponse:
    """One trace; while it is being read, htmx asks again for the part that changes."""
    trace = trace_get(name)
    run = trace.runs.filter(kind=Run.Kind.INGEST).first()
    context = {"trace": trace, "run": run, "report": trace.report}
    if trace.state == Trace.State.READY:
        context["figures"] = trace_figures(trace)
    if request.htmx and not request.htmx.history_restore_request:
        if run is None or run.finished:  # show the whole page: the report and its chart
            return HttpResponse(headers={"HX-Refresh": "true"})
        return render(request, "web/_trace_progress.html", context)
    return render(request, "web/trace.html", context)


@require_POST
def delete(request: Request, name: str) -> HttpResponse:
    trace = trace_get(name)
    traces.trace_delete(trace=trace, user=request.user)
    messages.success(request, f"Trace {name} is removed.")
    return redirect("web:traces")


def _go(request: Request, url: str) -> HttpResponse:
    return JsonResponse({"url": url}) if _scripted(request) else redirect(url)


def _refuse(request: Request, form: UploadForm, problem: str) -> HttpResponse:
    if _scripted(request):
        faults = [
            f"{form[name].label}: {' '.join(map(str, said))}" for name, said in form.errors.items()
        ]
        return JsonResponse({"problem": "\n".join(faults) or problem}, status=400)
    context = {"form": form, "problem": problem}
    return render(request, "web/trace_upload.html", context, status=400)


def _scripted(request: Request) -> bool:
    """Asked by upload.js; browsers themselves accept anything, so it must be said exactly."""
    return request.headers.get("Accept") == "application/json"

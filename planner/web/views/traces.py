"""Show traces: the list, the upload, one trace and its removal."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from planner.models import Run, Trace
from planner.selectors.traces import trace_get, traces_list
from planner.services import trace_removal, traces
from planner.services.access import may_plan
from planner.services.quota import disk_quota
from planner.services.retention import removal_sentence
from planner.web.errors import planners_only
from planner.web.form_responses import attempt, go
from planner.web.form_responses import refused as form_refused
from planner.web.forms.column_mapping import MappingForm
from planner.web.forms.upload import UploadForm
from planner.web.pages.trace import trace_context
from planner.web.paging import paged
from planner.web.request import Request


@require_safe
def listing(request: Request) -> HttpResponse:
    refused = traces_list().filter(state=Trace.State.REFUSED)
    page = paged(request, traces_list().exclude(state=Trace.State.REFUSED))
    return render(request, "web/traces.html", {"page": page, "refused": refused})


@require_http_methods(["GET", "POST"])
@planners_only
def upload(request: Request) -> HttpResponse:
    """Show the upload form and receive its file.

    Scripts that ask for JSON get the next address or the error.
    """
    if request.method != "POST":
        context = {"form": UploadForm(), "room": disk_quota(request.user)}
        return render(request, "web/trace_upload.html", context)
    form = UploadForm(request.POST, request.FILES)
    kept, problem = attempt(form, lambda: _keep(request, form))
    if kept is None:
        return form_refused(request, "web/trace_upload.html", form, problem)
    trace, _, new = kept
    if not new:
        messages.info(request, f"This file is here already, as {trace.name}; nothing was read.")
    return go(request, reverse("web:trace", args=[trace.name]))


@require_safe
def detail(request: Request, name: str) -> HttpResponse:
    """Show one trace; while it is being read, htmx requests the changing part again."""
    trace = trace_get(name)
    run = trace.runs.filter(kind=Run.Kind.INGEST).first()
    context = {"trace": trace, "run": run, "report": trace.report}
    if trace.state == Trace.State.READY:
        context |= trace_context(trace, request.GET)
    if may_plan(request.user) and (preview := traces.trace_preview(trace)):
        context["mapping"] = MappingForm(preview)
    if request.htmx and not request.htmx.history_restore_request:
        if run is None or run.finished:  # show the whole page: the report and its chart
            return HttpResponse(headers={"HX-Refresh": "true"})
        return render(request, "web/_trace_progress.html", context)
    if goes := removal_sentence(trace):
        messages.warning(request, goes)
    return render(request, "web/trace.html", context)


@require_POST
@planners_only
def read_again(request: Request, name: str) -> HttpResponse:
    """Read a refused file again with the column mapping or the reading that the user chose."""
    trace = trace_get(name)
    if "reading" in request.POST:
        chosen = request.POST["reading"]
        options = traces.trace_choice(trace, int(chosen) if chosen.isdecimal() else -1)
        traces.trace_reread(trace=trace, owner=request.user, options=options)
        return redirect("web:trace", name)
    preview = traces.trace_preview(trace)
    if preview is None:
        messages.error(request, "The file is not kept any more. Upload it again.")
        return redirect("web:trace", name)
    form = MappingForm(preview, request.POST)
    run, problem = attempt(
        form,
        lambda: traces.trace_reread(
            trace=trace, owner=request.user, options=form.options(trace.file_name)
        ),
    )
    if run is None:
        if problem:
            form.add_error(None, problem)
        context = {"trace": trace, "run": None, "report": trace.report, "mapping": form}
        return render(request, "web/trace.html", context, status=400)
    return redirect("web:trace", name)


@require_POST
def delete(request: Request, name: str) -> HttpResponse:
    trace = trace_get(name)
    trace_removal.trace_delete(trace=trace, user=request.user)
    messages.success(request, f"Trace {name} is removed.")
    return redirect("web:traces")


def _keep(request: Request, form: UploadForm) -> tuple[Trace, Run | None, bool]:
    file = form.cleaned_data["file"]
    return traces.trace_upload(
        owner=request.user, chunks=file.chunks(), file_name=file.name, options=form.options()
    )

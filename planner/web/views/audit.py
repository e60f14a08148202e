"""Show the audit log to admins."""

import json

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from planner.errors import NotFound
from planner.outputs import audit_csv, audit_json
from planner.selectors.audit import audit_actions, audit_list
from planner.services.access import check_may_administer
from planner.services.audit import record
from planner.web.form_responses import attachment
from planner.web.paging import page_of
from planner.web.request import Request, TemplateContext

FILES = {"csv": (audit_csv, "text/csv; charset=utf-8"), "json": (audit_json, "application/json")}


@require_safe
def listing(request: Request) -> HttpResponse:
    """List the audit log, filtered as requested; for admins."""
    check_may_administer(request.user)
    filters = {name: request.GET.get(name, "")[:200] for name in ("actor", "action", "search")}
    page = page_of(request, audit_list(all_workspaces=request.user.is_superuser, **filters))
    rows = [(entry, json.loads(entry.details)) for entry in page]
    context: TemplateContext = {
        "page": page,
        "rows": rows,
        "asked": filters,
        "actions": audit_actions(),
    }
    return render(request, "web/audit.html", context)


@require_safe
def download(request: Request, form: str) -> HttpResponse:
    """Download the whole audit log, and record the download in it."""
    check_may_administer(request.user)
    if form not in FILES:
        raise NotFound(f"The log can be downloaded as {' or '.join(FILES)}, not as {form[:20]}.")
    write, media = FILES[form]
    record("audit.exported", form, by=request.user)
    return attachment(write(request.user.is_superuser), media, f"audit.{form}")

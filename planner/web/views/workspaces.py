"""Show the workspaces and change the current one."""

from __future__ import annotations

from django import forms
from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST

from planner.config.middleware import ENTERED
from planner.selectors.people import workspace_for
from planner.services import workspaces
from planner.services.workspaces import workspace_remove
from planner.web.form_responses import attempt, form_with_errors
from planner.web.forms.widgets import DressedForm
from planner.web.request import Request

TEMPLATE = "web/workspaces.html"


@require_http_methods(["GET", "POST"])
def listing(request: Request) -> HttpResponse:
    """List the workspaces that a user may enter.

    Installation admins also get a form for a new workspace.
    """
    if request.method != "POST":
        return render(request, TEMPLATE, {"form": WorkspaceForm()})
    workspaces.check_installation_admin(request.user)
    form = WorkspaceForm(request.POST)
    workspace, problem = attempt(
        form, lambda: workspaces.workspace_add(by=request.user, **form.cleaned_data)
    )
    if workspace is None:
        return form_with_errors(request, TEMPLATE, form, problem)
    request.session[ENTERED] = workspace.slug
    messages.success(request, f"You are in {workspace.name} now. Invite people to it.")
    return redirect("web:people")


@require_POST
def enter(request: Request, slug: str) -> HttpResponse:
    """Make a workspace the current one for all later pages."""
    request.session[ENTERED] = workspace_for(request.user, slug).slug
    return redirect("web:home")


@require_POST
def remove(request: Request, slug: str) -> HttpResponse:
    """Delete a workspace and everything in it, after the user typed its slug."""
    workspaces.check_installation_admin(request.user)
    workspace = workspace_for(request.user, slug)
    confirm = request.POST.get("confirm", "")
    done = workspace_remove(by=request.user, workspace=workspace, confirm=confirm)
    messages.success(
        request,
        f"{workspace.name} is removed. A backup of its {done.rows:,} rows is in {done.path}.",
    )
    return redirect("web:workspaces")


class WorkspaceForm(DressedForm):
    name = forms.CharField(label="Name", max_length=80)
    slug = forms.CharField(
        label="Slug",
        max_length=40,
        required=False,
        help_text="Used in URLs, headers and commands. Cannot be changed. Default: from the name.",
    )

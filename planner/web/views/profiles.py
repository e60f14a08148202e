"""Show profiles: the list, one profile with its errors, and its removal."""

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from planner.errors import IngestError
from planner.inputs.profiles.tuning import MAX_FILE_BYTES, observations_of_file
from planner.models import ProfileVersion
from planner.outputs import csv_text
from planner.selectors import profiles as known
from planner.selectors.lookup import version_of
from planner.services import profiles
from planner.services.profile_fits import profile_compute, profile_tune
from planner.web.errors import planners_only
from planner.web.form_responses import CSV, attachment, attempt, render_form
from planner.web.forms.calibration import ComputedForm
from planner.web.hardware_names import choice_names, kernel_choices
from planner.web.pages.profile import page_context
from planner.web.paging import page_of
from planner.web.request import Request


@require_safe
def listing(request: Request) -> HttpResponse:
    """List the profiles, filtered by the words of a search; htmx gets only the rows."""
    search = request.GET.get("search", "")
    listed = known.profiles_list(search)
    page = page_of(request, listed)
    context = {"page": page, "profiles": page.object_list, "search": search}
    if not search and page.number == 1:
        context |= {"computed": known.plan_profiles(listed)}
    part = request.htmx and request.htmx.target == "rows"
    template = "web/_profiles_rows.html" if part else "web/profiles.html"
    return render(request, template, context)


@require_safe
def detail(request: Request, name: str) -> HttpResponse:
    """Show one profile in the requested version, with the measurements it was checked against."""
    profile = known.profile_get(name, version_of(request.GET.get("version", "")))
    return render(request, "web/profile.html", page_context(profile))


@require_http_methods(["GET", "POST"])
@planners_only
def new(request: Request) -> HttpResponse:
    """Create an operator or roofline profile, which needs no benchmark row."""
    choices = kernel_choices()
    problem: Exception | None = None
    if request.method == "POST":
        form = ComputedForm(request.POST, kernels=choices)
        version, problem = attempt(
            form, lambda: profile_compute(user=request.user, spec=form.spec())
        )
        if version is not None:
            return _to_profile(request, version)
    else:
        chosen = request.GET.getlist("kernels")
        kind = "operator" if chosen else "roofline"
        form = ComputedForm(initial={"kind": kind, "kernels": chosen}, kernels=choices)
    context = {"form": form, **choice_names()}
    return render_form(request, "web/profile_new.html", context, problem)


@require_safe
def residuals(request: Request, name: str) -> HttpResponse:
    """Return measured and predicted values of a profile, row by row, as a CSV file."""
    profile = known.profile_get(name, version_of(request.GET.get("version", "")))
    text = csv_text(known.profile_residuals(profile))
    return attachment(text, CSV, f"{profile.name}-v{profile.version}.csv")


@require_POST
@planners_only
def tune(request: Request, name: str) -> HttpResponse:
    """Save the next version of a profile, tuned to a file of observations.

    A built-in profile is saved under the name ``keep_as``.
    """
    file = request.FILES.get("file")
    if file is None:
        raise IngestError("Choose a file of observations first.")
    version = profile_tune(
        user=request.user,
        name=name,
        observations=observations_of_file(file.read(MAX_FILE_BYTES + 1), file.name or "the file"),
        keep_as=request.POST.get("keep_as", ""),
        source=file.name or "",
    )
    return _to_profile(request, version)


@require_POST
def delete(request: Request, name: str) -> HttpResponse:
    """Remove an own profile; a built-in one stays."""
    profile = known.profile_get(name)
    if profile.row is None:
        messages.error(request, f"{name} is built in and stays.")
        return redirect("web:profile", name)
    profiles.profile_delete(profile=profile.row.profile, user=request.user)
    messages.success(request, f"Profile {name} is removed.")
    return redirect("web:profiles")


def _to_profile(request: Request, version: ProfileVersion) -> HttpResponse:
    messages.success(request, f"{version.profile.name}, version {version.version}, is created.")
    return redirect("web:profile", version.profile.name)

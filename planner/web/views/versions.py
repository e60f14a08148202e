"""Show versions of a scenario: list them, compare two, restore or branch from one."""

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from planner.errors import PlannerError
from planner.inputs.scenario.document import PARTS
from planner.models import Scenario, ScenarioVersion
from planner.selectors.lookup import id_of
from planner.selectors.scenarios import (
    compare_versions,
    scenario_get,
    scenarios_list,
    version_get,
    versions_changing,
)
from planner.services.scenarios import scenario_branch, scenario_restore
from planner.web.errors import planners_only
from planner.web.pages.setting_lines import setting_line
from planner.web.paging import page_of
from planner.web.request import Request

OTHERS = 200  # scenarios that may receive a part


@require_safe
def listing(request: Request, pk: int) -> HttpResponse:
    """List all versions, or those that changed a ``part``, and compare two of them.

    ``from`` and ``to`` name the two. The default is the last two.
    """
    scenario = scenario_get(str(pk))
    part = _checked_part(request.GET.get("part", ""))
    rows = versions_changing(scenario, part)
    last_two = list(rows[:2])  # the newest first; a new scenario may have one version
    newest, before = (last_two[0], last_two[-1]) if last_two else (None, None)
    old = _version(scenario, request.GET.get("from", ""), default=before)
    new = _version(scenario, request.GET.get("to", ""), default=newest)
    difference = compare_versions(old, new, part) if old and new and old != new else None
    context = {
        "scenario": scenario,
        "part": part,
        "newest": newest,
        "others": scenarios_list().exclude(pk=scenario.pk)[:OTHERS] if part else [],
        "page": page_of(request, rows),
        "old": old,
        "new": new,
        "found": difference,
        "settings": [setting_line(row) for row in difference.settings] if difference else [],
        "lines": [(line, _line_colour(line)) for line in difference.lines] if difference else [],
    }
    return render(request, "web/versions.html", context)


@require_POST
@planners_only
def restore(request: Request, pk: int, number: int) -> HttpResponse:
    """Restore a version, or one section of it, possibly into another scenario."""
    version = version_get(scenario_get(str(pk)), number)
    part, other = _checked_part(request.POST.get("part", "")), request.POST.get("into", "")
    into = scenario_get(other) if other else None
    saved = scenario_restore(version=version, user=request.user, part=part, into=into)
    what = f"{part.capitalize()} of version {number} are" if part else f"Version {number} is"
    where = f" in {saved.name}" if into else ""
    messages.success(request, f"{what} restored{where}, as version {saved.version}.")
    address = reverse("web:scenario-versions", args=[saved.pk])
    return redirect(f"{address}?part={part}" if part else address)


@require_POST
@planners_only
def branch(request: Request, pk: int, number: int) -> HttpResponse:
    """Create a new scenario from a version of another one."""
    version = version_get(scenario_get(str(pk)), number)
    branched = scenario_branch(
        version=version, user=request.user, name=request.POST.get("name", "")
    )
    messages.success(request, f"{branched.name} is created.")
    return redirect("web:scenario", branched.pk)


def _version(
    scenario: Scenario, text: str, default: ScenarioVersion | None
) -> ScenarioVersion | None:
    """Return the version with the number ``text``; ``default`` for an empty text."""
    if not text:
        return default
    return version_get(scenario, id_of(text) or 0)


def _checked_part(name: str) -> str:
    """Return the name of a section of a scenario, or ""; raise PlannerError for another name."""
    if name and name not in PARTS:
        raise PlannerError(f"part: unknown value {name[:40]!r}. Known: {', '.join(PARTS)}.")
    return name


def _line_colour(line: str) -> str:
    """Return the CSS colour class of a line in a unified diff: added, removed, heading or other."""
    if line.startswith(("---", "+++", "@@")):
        return "secondary"
    return {"+": "success", "-": "danger"}.get(line[:1], "")

"""What a scenario names of the user's own hardware, looked up when a run of it is made.

The run keeps the answer: facts of GPUs and models as they were, profiles by version, which never
change. So a run says later what it rested on, whatever was edited or fitted since.
"""

from __future__ import annotations

from typing import Any

from planner import catalogue
from planner.errors import NotFound, ScenarioError
from planner.models import Calibration, OwnGpu, OwnModel, PriceList
from planner.scenario.schema import Scenario
from planner.selectors.own import kept_rows
from planner.selectors.profiles import profile_get

Resolved = dict[str, Any]
LISTED = 12  # names told beside an unknown one


def resolve_scenario(scenario: Scenario) -> Resolved:
    """Raises ScenarioError where a profile that is named does not exist."""
    gpus = {section.gpu for section in scenario.profiles}
    models = {section.model for section in scenario.profiles}
    in_full = {gpu.name for gpu in scenario.gpus if gpu.in_full}
    in_full |= {model.name for model in scenario.models if model.in_full}
    profiles: dict[str, Any] = {}
    for index, section in enumerate(scenario.profiles):
        if section.name is None:
            continue
        try:
            known = profile_get(section.name, section.version)
        except NotFound as problem:
            raise ScenarioError(f"profiles[{index}].name: {problem}") from None
        if known.row is None:
            raise ScenarioError(
                f"profiles[{index}].name: {section.name} is built in; leave out name and give its "
                "model, gpu and tp."
            )
        profiles[section.name] = {"version": known.version, "id": known.row.pk}
    return {
        "gpus": _facts(OwnGpu, gpus - in_full - set(catalogue.gpus())),
        "models": _facts(OwnModel, models - in_full - set(catalogue.models())),
        "profiles": profiles,
        "kernels": _kernels(gpus),
        "measured": _measured(scenario),
        "prices": _prices(scenario),
    }


def _measured(scenario: Scenario) -> list[dict[str, Any]]:
    """The rows of benchmark files kept here, where there is a computed profile that they move."""
    computed = any(section.kind == "roofline" for section in scenario.profiles)
    return kept_rows() if computed else []


def _prices(scenario: Scenario) -> dict[str, Any]:
    """The price list that is named, as it is now; raises ScenarioError where there is none."""
    name = scenario.price_list
    if name is None:
        return {}
    row = PriceList.objects.filter(name=name).first()
    if row is None:
        names = list(PriceList.objects.values_list("name", flat=True)[:LISTED])
        have = f"there are {', '.join(names)}" if names else "there is none"
        raise ScenarioError(
            f"price_list: there is no price list {name!r}; {have}. Upload it on the page of prices "
            "or with bin/manage prices, or leave it out."
        )
    return {"name": name, "rows": row.facts["prices"]}


def _kernels(gpus: set[str]) -> dict[str, list[int]]:
    """Files of measured kernels that were uploaded, by GPU type, oldest first."""
    files_of: dict[str, list[int]] = {}
    for row in Calibration.objects.filter(kind=Calibration.Kind.KERNELS).order_by("pk"):
        for gpu in sorted(gpus.intersection(row.report.get("gpus", []))):
            files_of.setdefault(gpu, []).append(row.pk)
    return files_of


def _facts(kind: Any, names: set[str]) -> dict[str, Any]:
    return {
        row.name: {"facts": row.facts, "kind": row.kind, "source": row.source}
        for row in kind.objects.filter(name__in=names)
    }

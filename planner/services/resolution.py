"""What a scenario names of the user's own hardware, looked up when a run of it is made.

The run keeps the answer: facts of GPUs and models as they were, profiles by version, which never
change. So a run says later what it rested on, whatever was edited or fitted since.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from planner import catalogue, storage
from planner.catalogue.price_lists import OwnPrice
from planner.errors import CatalogueError, NotFound, ScenarioError
from planner.mappers import gpu_from_facts, model_from_facts, profile_of
from planner.models import Calibration, OwnGpu, OwnModel, PriceList, ProfileVersion
from planner.scenario.known import KernelSource, Known
from planner.scenario.schema import Scenario
from planner.selectors.profiles import profile_get
from planner.services.calibrations import CALIBRATIONS, KERNEL_FILE
from planner.services.own import kept_rows, own_of_rows
from simulation.performance.estimate.own import Times
from simulation.performance.specs import Provenance

Resolved = dict[str, Any]
LISTED = 12  # names told beside an unknown one


def resolve_scenario(scenario: Scenario) -> Resolved:
    """Raises ScenarioError where a profile that is named does not exist."""
    gpus = {section.gpu for section in scenario.profiles}
    models = {section.model for section in scenario.profiles}
    given = {gpu.name for gpu in scenario.gpus if gpu.in_full}
    given |= {model.name for model in scenario.models if model.in_full}
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
        "gpus": _facts(OwnGpu, gpus - given - set(catalogue.gpus())),
        "models": _facts(OwnModel, models - given - set(catalogue.models())),
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
    found: dict[str, list[int]] = {}
    for row in Calibration.objects.filter(kind=Calibration.Kind.KERNELS).order_by("pk"):
        for gpu in sorted(gpus.intersection(row.report.get("gpus", []))):
            found.setdefault(gpu, []).append(row.pk)
    return found


def known_of(resolved: Resolved) -> Known:
    """What ``build_hardware`` needs, from what a run keeps."""
    gpus = resolved.get("gpus") or {}
    models = resolved.get("models") or {}
    named = resolved.get("profiles") or {}
    rows = ProfileVersion.objects.select_related("profile").in_bulk(
        [r["id"] for r in named.values()]
    )
    for name, one in named.items():
        if one["id"] not in rows:
            raise CatalogueError(
                f"Profile {name}, version {one['version']}, has been removed; choose another."
            )
    facts = Known(
        gpus={n: gpu_from_facts(n, g["facts"], _provenance(g)) for n, g in gpus.items()},
        models={n: model_from_facts(n, m["facts"], _provenance(m)) for n, m in models.items()},
    )
    return replace(
        facts,
        own=_own(facts, resolved.get("measured") or []),
        profiles={name: profile_of(rows[one["id"]]) for name, one in named.items()},
        prices={
            (row["region"], row["gpu"]): OwnPrice(**row)
            for row in (resolved.get("prices") or {}).get("rows", [])
        },
        kernels={
            gpu: tuple(_kernel_source(number) for number in files)
            for gpu, files in (resolved.get("kernels") or {}).items()
        },
    )


def _own(facts: Known, files: list[dict[str, Any]]) -> Times | None:
    """What the rows say that the run keeps."""
    own = own_of_rows(files, facts) if files else None
    return own.times if own else None


def _kernel_source(number: int) -> KernelSource:
    """One that was removed since has a path where nothing lies; what needs it says so."""
    row = Calibration.objects.filter(pk=number).first()
    path = storage.folder(f"{CALIBRATIONS}/{number}") / KERNEL_FILE
    if row is None:
        return KernelSource(path, f"calibration {number}", "auto", "")
    return KernelSource(path, row.file_name, row.format, row.source)


def _facts(kind: Any, names: set[str]) -> dict[str, Any]:
    return {
        row.name: {"facts": row.facts, "kind": row.kind, "source": row.source}
        for row in kind.objects.filter(name__in=names)
    }


def _provenance(held: dict[str, Any]) -> Provenance:
    return Provenance(held["kind"], held["source"])

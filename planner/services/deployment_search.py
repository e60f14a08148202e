"""Search deployments for the command line, the REST API and the page."""

import math
import pickle
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any

from django.core.cache import caches

from planner.domain.deployment_search.query import DeploymentQuery, price_of
from planner.domain.deployment_search.search import DeploymentSearchResult
from planner.domain.deployment_search.search import search_deployments as compute_search
from planner.domain.progress import Progress, silent
from planner.errors import PlannerError
from planner.inputs import catalogue
from planner.inputs.scenario.document import edit, outline, parse
from planner.inputs.scenario.schema.regions import Region
from planner.selectors.hardware import own_hardware
from planner.selectors.scenarios import scenario_get
from planner.selectors.traces import ready_trace
from planner.services.draft_windows import window_choices
from planner.services.drafts import scenario_draft
from planner.services.estimates import STORED_MEASUREMENTS, MeasurementSource
from planner.services.launch_drafts import LaunchDescription, launch_draft

Row = dict[str, Any]  # a mapping in a scenario document
NO_LIMITS: Mapping[str, float | None] = {}


def search_deployments(
    query: DeploymentQuery,
    progress: Progress = silent,
    measured: MeasurementSource = STORED_MEASUREMENTS,
) -> DeploymentSearchResult:
    """Return the deployments of a model sorted by cost.

    Measurements from ``measured`` correct the estimated speeds. Raises PlannerError or
    SimulationError.
    """
    hardware = own_hardware()
    return compute_search(query, hardware, progress, measured.own_measurements(hardware))


def stored_search(query: DeploymentQuery, progress: Progress = silent) -> DeploymentSearchResult:
    """Return the answer of ``search_deployments`` from the cache, or compute and cache it.

    It is computed again once the user's hardware or measurements change. Raises PlannerError or
    SimulationError.
    """
    hardware = own_hardware()
    measured = STORED_MEASUREMENTS.own_measurements(hardware)
    key, answers = _answer_key(query, hardware, measured), caches["answers"]
    answer: DeploymentSearchResult | None = answers.get(key)
    if answer is None:
        answer = compute_search(query, hardware, progress, measured)
        answers.set(key, answer)
    return answer


def is_search_stored(query: DeploymentQuery) -> bool:
    """Return whether the cache has the answer of ``stored_search``."""
    hardware = own_hardware()
    measured = STORED_MEASUREMENTS.own_measurements(hardware)
    return _answer_key(query, hardware, measured) in caches["answers"]


def _answer_key(*question: Any) -> str:
    """Return the key of an answer in the cache: a hash of all the inputs on which it depends."""
    return sha256(pickle.dumps(question)).hexdigest()


def scenario_with_deployments(
    *,
    model: str,
    profiles: Sequence[Row],
    limits: Mapping[str, float | None] = NO_LIMITS,
    scenario: str = "",
    trace: str = "",
    launch: LaunchDescription | None = None,
) -> str:
    """Return the document (YAML) of a scenario with the chosen deployments of ``model``.

    The scenario is the stored one called ``scenario``, or a new draft for the trace called
    ``trace`` or for ``launch``. ``profiles`` are rows of a scenario's ``profiles``. For ``limits``
    see ``replace_deployments``. Raises PlannerError unless exactly one of the three is given.
    """
    if sum(map(bool, (scenario, trace, launch))) != 1:
        raise PlannerError("Name a scenario or a trace to put the deployments into, one of them.")
    if launch:
        return replace_deployments(launch_draft(launch), model, profiles, limits, in_place=True)
    if scenario:
        base = scenario_get(scenario)
        text = replace_deployments(base.document, model, profiles)
        # the stored scenario does not change
        return edit(text, {"name": f"{base.name[:90]}, {profiles[0]['gpu']}"})
    stored = ready_trace(trace)
    # The default window comes first. A short trace has no choices.
    draft = scenario_draft(stored, next(iter(window_choices(stored)), None))
    return replace_deployments(draft, model, profiles, limits, in_place=True)


def replace_deployments(
    document: str,
    model: str,
    profiles: Sequence[Row],
    limits: Mapping[str, float | None] = NO_LIMITS,
    *,
    in_place: bool = False,
) -> str:
    """Return ``document`` with the chosen deployments of ``model`` instead of its current ones.

    Missing GPU types are added to each region as ``add_missing_gpus`` says. With ``in_place``, the
    deployments serve all traffic of the draft, and ``limits`` (keys ttft_ms and tbt_ms) replace
    those of the strictest tier; a limit of None keeps the tier's own. Raises ScenarioError if the
    result is not valid.
    """
    if not profiles:
        raise PlannerError("No deployment is chosen; tick one of the list.")
    parsed, data = parse(document), outline(document)
    chosen = [dict(row) for row in profiles]
    gpus = list(dict.fromkeys(str(row.get("gpu", "")) for row in chosen))
    regions = [
        add_missing_gpus(row, region, gpus)
        for row, region in zip(data["regions"], parsed.regions, strict=True)
    ]
    changes: Row = {"regions": regions}
    if in_place:
        # All traffic goes to the model.
        changes["profiles"] = chosen
        changes["models"] = [model]
        changes["traffic.sources"] = [dict(row, model=model) for row in data["traffic"]["sources"]]
        # The tier with the lowest TTFT limit gets the limits.
        ttft_limits_ms = [tier.ttft_ms or math.inf for tier in parsed.tiers]
        strictest = ttft_limits_ms.index(min(ttft_limits_ms))
        tiers = [dict(row) for row in data["tiers"]]
        tiers[strictest] |= {name: limit for name, limit in limits.items() if limit is not None}
        changes["tiers"] = tiers
    else:
        of_other_models = [row for row in data["profiles"] if row.get("model") != model]
        changes["profiles"] = [*of_other_models, *chosen]
        if model not in {listed.name for listed in parsed.models}:
            changes["models"] = [*data["models"], model]
    text = edit(document, changes)
    parse(text)
    return text


def add_missing_gpus(row: Mapping[str, Any], region: Region, needed: Iterable[str]) -> Row:
    """Return a region of a scenario document, with the GPU types in ``needed`` that it lacks.

    ``row`` is the region in the document and ``region`` the same one, parsed. It gets as many GPUs
    of a new type as it has of its most numerous type. If the region's built-in price list lacks the
    new type, its price is the median of the known offers.
    """
    missing = [gpu for gpu in needed if gpu not in region.capacity]
    if not missing:
        return dict(row)
    most_gpus = max(region.capacity.values(), default=0)
    built_in = catalogue.regions().get(region.like or "")
    listed_prices = built_in.usd_per_gpu_hour if built_in else {}
    median_prices = {gpu: price_of(gpu, {}).usd for gpu in missing if gpu not in listed_prices}
    prices = {gpu: round(usd, 4) for gpu, usd in median_prices.items() if usd > 0}
    changed = {**row, "capacity": {**row["capacity"], **dict.fromkeys(missing, most_gpus)}}
    if prices:
        changed["usd_per_gpu_hour"] = {**prices, **row.get("usd_per_gpu_hour", {})}
    return changed

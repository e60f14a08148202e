"""Draft a first scenario for traffic that nobody has seen yet.

The user describes the launch. Everything else is filled in so that the draft can run at once.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date

from planner.errors import NotFound, ScenarioError
from planner.inputs import catalogue
from planner.inputs.catalogue.hardware import model_known_as
from planner.inputs.catalogue.shapes import shapes
from planner.inputs.scenario.build import build_hardware
from planner.inputs.scenario.document import dump_mapping, parse
from planner.inputs.scenario.schema.test_days import DRAFT_DAYS
from planner.policies.choice import DRAFTED
from planner.selectors.hardware import fit_on_gpu, gpu_get, model_get, own_hardware
from planner.services.draft_assumptions import Assumption, cold_start
from planner.services.draft_profiles import best_tp
from planner.services.draft_windows import HorizonChoice
from planner.services.drafts import (
    CAPACITY_GPUS,
    FAST,
    MAX_REPLAYED_REQUESTS,
    STARTUP_S,
    Row,
    region_gpus,
)
from planner.services.scenarios import free_name
from simulation.sizing.queueing import largest_rate

DAY_S = 86_400
WEEKDAY_TO_MEAN = 7 / 5  # at most: a weekday over the mean day, if weekends have no traffic


@dataclass(frozen=True, slots=True)
class LaunchDescription:
    """What a user expects of the traffic of a launch, for which there is no trace."""

    model: str
    gpu: str
    region: str  # a built-in region; "": the first with a price
    requests_per_day: float  # on average over a week
    input_tokens: float
    output_tokens: float
    day: str | list[float]  # name of a built-in shape of a day, or requests of each hour
    weekend: float | None  # requests of a weekend day over those of a weekday; None: the default
    utc_offset_h: float
    growth_per_month: float  # 0.1: 10% more each month
    begins: date
    ttft_ms: float
    tbt_ms: float
    horizon: HorizonChoice


def launch_draft(described: LaunchDescription) -> str:
    """Return the YAML of a scenario for the described launch.

    Raises ScenarioError if the model does not fit on the GPU type, or if the GPU type has no price.
    """
    gpu = catalogue.gpu_name(described.gpu)
    region = _priced_region(described.region, gpu)
    data: Row = {
        "version": 1,
        "name": free_name(f"Launch of {described.model.rpartition('/')[2]}"),
        "models": [described.model],
        "profiles": [_profile(described.model, gpu)],
        "regions": [{"name": region, "like": region, "capacity": {gpu: CAPACITY_GPUS}}],
        "tiers": [{"name": FAST, "ttft_ms": described.ttft_ms, "tbt_ms": described.tbt_ms}],
        "traffic": _traffic(described),
        "fleet": {"startup_s": STARTUP_S},
        "policies": list(DRAFTED),
        "test_days": [dict(day) for day in DRAFT_DAYS if day["kind"] != "past"],
        "horizon": {"start": "end", "duration_s": described.horizon.replayed_s},
    }
    # The size of the region replaces CAPACITY_GPUS. It follows from the profile of the draft and
    # from the traffic of its busiest hour.
    hardware = build_hardware(parse(dump_mapping(data)), own_hardware())
    (profile,) = hardware.profiles.values()
    replica_rps, _ = largest_rate(profile, described.input_tokens, described.output_tokens)
    by_hour = shapes()[described.day].by_hour if isinstance(described.day, str) else described.day
    mean_rps = described.requests_per_day / DAY_S
    mean_hour = max(sum(by_hour) / len(by_hour), 1e-9)  # above 0, also for a day without requests
    peak_to_mean = max(by_hour) / mean_hour
    growth = max(1.0, (1 + described.growth_per_month) ** described.horizon.months)
    peak_rps = peak_to_mean * WEEKDAY_TO_MEAN * mean_rps * growth
    (region_row,) = data["regions"]
    region_row["capacity"][gpu] = region_gpus(peak_rps, replica_rps, profile.tp)
    return dump_mapping(data)


def _traffic(described: LaunchDescription) -> Row:
    """Return the section ``traffic``: the requests of a day, and their growth if there is any."""
    launch: Row = {
        "requests_per_day": described.requests_per_day,
        "day": described.day,
        "begins": described.begins.isoformat(),
    }
    if described.weekend is not None:
        launch["weekend"] = described.weekend
    if described.utc_offset_h:
        launch["utc_offset_h"] = described.utc_offset_h
    source = {
        "launch": launch,
        "model": described.model,
        "input_tokens": {"mean": described.input_tokens},
        "output_tokens": {"mean": described.output_tokens},
    }
    traffic: Row = {"sources": [source]}
    if described.growth_per_month:
        traffic["growth"] = {"per_month": described.growth_per_month}
    return traffic | {"max_replayed": MAX_REPLAYED_REQUESTS}


def _priced_region(name: str, gpu: str) -> str:
    """Return the built-in region ``name``; for "", the first one with a price of ``gpu``.

    Raises ScenarioError if the region is unknown or has no price of ``gpu``.
    """
    regions = catalogue.regions()
    with_price = [key for key, region in regions.items() if gpu in region.usd_per_gpu_hour]
    chosen = name or next(iter(with_price), "")
    if chosen not in with_price:
        raise ScenarioError(
            f"There is no built-in price of {gpu} in {chosen or 'any region'}. Choose from "
            f"{', '.join(with_price[:12]) or 'another GPU'}, or state yours in the YAML."
        )
    return chosen


def launch_assumptions(described: LaunchDescription, document: str) -> Iterator[Assumption]:
    """Yield what the draft assumes: profile, price, lengths, shape of the day and cold start."""
    draft = parse(document)
    (profile,) = draft.profiles
    (region,) = draft.regions
    (capacity,) = region.capacity.values()
    usd = catalogue.regions()[region.name].usd_per_gpu_hour[profile.gpu]
    speed_words = "estimated (roofline), not measured"
    if profile.kind == "linear":
        speed_words = "built-in, measured"
    yield Assumption(
        "profiles",
        "Model and GPUs",
        f"{profile.model} on {profile.tp} x {profile.gpu}, {profile.precision}",
        f"{speed_words}; the fewest GPUs on which it fits",
        "Other arrangements change the fleet. Find a deployment searches all.",
    )
    yield Assumption(
        "regions",
        "Region and price",
        f"{region.name}: ${usd:,.2f} per GPU-hour, {capacity:,} GPUs available",
        "the list price on demand",
        "Cost goes with the price.",
    )
    yield Assumption(
        "sources",
        "Spread of lengths",
        "log-normal, CV 1, of prompts and answers",
        "near Azure's conversations of 2023",
        "A longer tail lowers the capacity of a replica.",
    )
    if isinstance(described.day, str):
        shape = shapes()[described.day]
        yield Assumption(
            "sources",
            "Shape of the day",
            f"{shape.name}: {shape.words}; peak {max(shape.by_hour):.2g} times the mean",
            f"{shape.provenance.kind}: {shape.provenance.source}",
            "The mean decides the cost, the peak decides the largest fleet.",
        )
    yield cold_start(draft)


def _profile(model: str, gpu: str) -> Row:
    """Return the ``profiles`` row of a model: built in and measured, else a roofline estimate.

    The estimate uses the fewest GPUs on which the model fits. Raises ScenarioError if none do.
    """
    name = model_known_as(model)
    measured = {
        (profile_model, profile_gpu) for profile_model, profile_gpu, _ in catalogue.profiles()
    }
    if (name, gpu) in measured:
        return {"model": model, "gpu": gpu, "tp": best_tp(name, gpu)}
    try:
        spec, gpu_spec = model_get(name).spec, gpu_get(gpu).spec
    except NotFound as problem:
        raise ScenarioError(str(problem)) from None
    published = catalogue.published_precision(name) if name in catalogue.models() else "bf16"
    for precision in dict.fromkeys((published, "bf16", "fp8")):
        tp = fit_on_gpu(spec, gpu_spec, precision).tp
        if tp is not None and precision in gpu_spec.peak_flops:
            row = {"model": model, "gpu": gpu, "tp": tp}
            return row | {"kind": "roofline", "precision": precision}
    raise ScenarioError(f"{model} does not fit on any number of {gpu}. Choose a larger GPU.")

"""List every input of a result that may be doubted.

Each has a value and a provenance: measured, published, modelled or assumed. A GPU column is one
way to run replicas: a GPU type, its number of GPUs and role, bought or as spot.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from planner.domain.formats import counted, duration
from planner.domain.sources import provenance_at
from planner.domain.study import Study
from planner.domain.traffic.binned_source import FILE_CV, BinnedSource
from planner.domain.traffic.described_traffic import shape_of
from planner.domain.traffic.described_traffic import words_of as launch_words
from planner.domain.traffic.forecast_percentile import CHOSEN
from planner.domain.traffic.groups import tier_label
from planner.domain.traffic.traffic import FORECAST, MEASURED, Traffic
from planner.domain.traffic.window import Window
from planner.domain.verification.profile_error import UNCHECKED, stated_error
from planner.inputs.scenario.build import Hardware
from planner.inputs.scenario.columns import arrangement
from planner.inputs.scenario.links import kv_transfer_title
from planner.inputs.scenario.regions import GIVEN
from planner.inputs.scenario.schema import Source
from planner.inputs.scenario.settings import PlanSettings
from simulation.arrays import CodeArray, FloatArray, Int32Array, count_codes, row_slices
from simulation.fleet import Tier
from simulation.performance.compiled_graph import GraphProfile
from simulation.performance.specs import Provenance
from simulation.sizing.queueing import largest_rate
from simulation.synthesis import SampledLength
from simulation.trace import CachedTokens

ASSUMED, MODELLED = "assumed", "modelled"
REQUESTS = "Requests in the window"
SLO_OF = "SLO of tier "  # before the name of a tier
OBSERVED = "measured"  # provenance; MEASURED is an origin of requests
GIGA = 1e9
BATCHING = {
    "chunked": "chunked prefill",
    "whole": "whole prompts first",
    "alone": "whole prompts alone",
}
SCHEDULERS = {
    "fcfs": "first come, first served",
    "edf": "earliest deadline first",
    "pf": "priority first",
    "dpa": "deadline and priority aware",
}
ROUTERS = {  # by setting of fleet.routing
    "least-remaining": "fewest remaining tokens",
    "least-pending": "fewest waiting prompt tokens",
    "round-robin": "each in turn",
    "least-memory": "least KV memory in use",
    "prefix-aware": "fewest prompt tokens to compute",
    "together": "all pools as one",
    "queues": "queues and KV memory",
    "memory": "KV memory only",
}
LENGTH_FACTOR = 1.2  # factor on a mean length, to show the effect on replicas and cost


@dataclass(frozen=True, slots=True)
class Assumption:
    """One input of a result with its source; ``key`` is the scenario key that sets it."""

    what: str
    value: str  # value with unit
    provenance: str  # measured, published, modelled or assumed
    source: str
    key: str
    matters: str = ""  # effect on replicas and cost in words, estimated from capacities alone
    effect: float | None = None  # the same effect as a share


def assumptions_of(study: Study) -> tuple[Assumption, ...]:
    """Return the inputs of a study: traffic first, then hardware, costs and planning."""
    assumptions = (
        *_traffic(study),
        *_tiers(study.hardware.tiers),
        *_speeds(study),
        *_serving(study.hardware),
        *_regions(study.hardware, dict(study.hardware.provenance)),
        *_fleet(study),
        *_plan(study),
    )
    return tuple(dict.fromkeys(assumptions))  # spot and owned GPUs share inputs


def replay_of(window: Window, traffic: Traffic) -> str:
    """Return the origin of the replayed requests, such as MEASURED or FORECAST."""
    return FORECAST if window.after_traffic else traffic.replay


def assumed_today(seconds: float) -> str:
    """Describe the fleet that is assumed to run today if the scenario does not state one.

    ``seconds`` is the length of the traffic before the window.
    """
    if not seconds:
        return (
            "not stated in the scenario, and no traffic before the window: the smallest "
            "allowed fleet"
        )
    return (
        "not stated in the scenario: the static fleet for the peak of the "
        f"{seconds / 3600:,.3g} hours before the window"
    )


def _traffic(study: Study) -> Iterator[Assumption]:
    """Yield the inputs of the traffic: requests, samples, growth, shares and lengths."""
    traffic, replay = study.traffic, replay_of(study.window, study.traffic)
    key = "traffic.sources"
    kind = OBSERVED if replay == MEASURED else MODELLED
    yield Assumption(REQUESTS, f"{len(study.trace):,}", kind, replay, key)
    for sample in traffic.samples:
        what, source = f"Sample of {sample.name}", "binomial error of the sample"
        yield Assumption(what, sample.words, MODELLED, source, key)
    growth = study.window.growth
    if growth and study.window.after_traffic:
        value = f"{growth.words} of the forecast"
        yield Assumption("Growth", value, ASSUMED, "scenario", "traffic.growth")
    for i, row in enumerate(study.settings.traffic.sources):
        yield from _source(row, f"{key}[{i}]")
    for m, model in enumerate(traffic.models):
        for lengths in _lengths(traffic, m, model):
            yield _with_effect_of_longer_lengths(study, m, lengths)
        yield from _cached_prompts(study, m, model)


def _source(source: Source, key: str) -> Iterator[Assumption]:
    """Yield the inputs of a traffic source: its launch, its scale, its split by region and tier.

    ``key`` is its key in the scenario, such as "traffic.sources[0]".
    """
    name = source.trace or source.file or ""
    if source.launch is not None:
        name = source.model or ""
        yield from _launch(source, f"{key}.launch")
    label = f"{source.series} of {name}" if source.series else name
    if source.scale != 1:
        value = f"{source.scale:g} times what the {'trace' if source.trace else 'launch'} has"
        yield Assumption(f"Volume of {label}", value, ASSUMED, "scenario", f"{key}.scale")
    words = "drawn at random in these shares, the same at all times"
    for dimension, shares in (("region", source.regions), ("tier", source.tiers)):
        if len(shares) > 1:
            what = f"Split of {label} by {dimension}"
            value = ", ".join(f"{part} {share:.0%}" for part, share in shares.items())
            yield Assumption(what, value, ASSUMED, words, f"{key}.{dimension}s")


def _launch(source: Source, key: str) -> Iterator[Assumption]:
    """Yield the inputs of a launch: traffic that the scenario describes, without measurements."""
    launch = source.launch
    if launch is None:
        return
    what = f"Demand for {source.model}"
    yield Assumption(what, launch_words(source), ASSUMED, "described by the scenario", key)
    shape = shape_of(launch)
    value = f"{shape.name}, peak {max(shape.by_hour):.3g} times the mean of a weekday"
    what, origin = f"Shape of a day of {source.model}", shape.provenance
    yield Assumption(what, value, origin.kind, origin.source, f"{key}.day")
    value = f"an hour is off its shape by {launch.variation:.0%} (cv)"
    words = "hours of Azure 2024's two services are off by 8% and 10%"
    yield Assumption(f"Variation of {source.model}", value, ASSUMED, words, f"{key}.variation")


def _lengths(traffic: Traffic, m: int, model: str) -> Iterator[Assumption]:
    """Yield the prompt and answer lengths of model number ``m``, from requests and from counts."""
    has_requests = count_codes(traffic.measured.model, len(traffic.models))[m] > 0
    for part, field in (("Prompt", "input_tokens"), ("Answer", "output_tokens")):
        what, key = f"{part} lengths of {model}", f"traffic.sources.{field}"
        if has_requests:
            mean, deviation = _moments(getattr(traffic.measured, field), traffic.measured.model, m)
            value = f"mean {mean:,.0f} tokens, CV {deviation / mean:.2f}"
            yield Assumption(what, value, OBSERVED, "the lengths of each request in the trace", key)
        for source in traffic.binned:
            if source.model == m:
                yield _lengths_of_counts(what, source, field, key)


def _cached_prompts(study: Study, m: int, model: str) -> Iterator[Assumption]:
    """Yield the share of prompt tokens that the traffic counts as cached, if it counts them."""
    traffic = study.traffic
    shared = traffic.shared[m] if traffic.shared else None
    if shared is None or not isinstance(shared.blocks, CachedTokens):
        return
    share = float(shared.blocks.tokens.sum()) / float(shared.isl.sum())
    value = f"{share:.1%} of prompt tokens"
    if not study.hardware.serving[m].prefix_caching:
        value += ", not used: serving has no prefix caches"
    stated = any(source.cached_share is not None for source in study.settings.traffic.sources)
    kind, words = (ASSUMED, "scenario") if stated else (OBSERVED, "counted by the trace")
    key = "traffic.sources.cached_share"
    yield Assumption(f"Cached prompts of {model}", value, kind, words, key)


def _moments(tokens: Int32Array, models: CodeArray, m: int) -> tuple[float, float]:
    """Return (mean, standard deviation) of ``tokens`` over the requests of model number ``m``.

    ``tokens`` and ``models`` (model numbers) have one item per request.
    """
    count, total, squares = 0, 0.0, 0.0
    for rows in row_slices(len(tokens)):
        values = tokens[rows][models[rows] == m].astype(np.float64)
        count += len(values)
        total += values.sum()
        squares += values @ values
    mean = total / count
    return mean, math.sqrt(max(0.0, squares / count - mean * mean))


def _with_effect_of_longer_lengths(study: Study, m: int, row: Assumption) -> Assumption:
    """Return ``row``, on prompt or answer lengths of model ``m``, with the effect of longer ones.

    The effect on replicas and cost is that on one replica's highest rate at mean lengths, computed
    without a simulation. If it is not known, return ``row`` unchanged.
    """
    profiles = [profile for (model, _), profile in study.hardware.profiles.items() if model == m]
    inputs, outputs = study.traffic.lengths[m]
    if not profiles or not len(inputs):
        return row
    isl, osl = float(inputs.mean()), float(outputs.mean())
    profile = profiles[0]
    rate, _ = largest_rate(profile, isl, osl)
    if row.what.startswith("Prompt"):
        isl *= LENGTH_FACTOR
    else:
        osl *= LENGTH_FACTOR
    rate_if_longer, _ = largest_rate(profile, isl, osl)
    if not all(math.isfinite(rps) and rps > 0 for rps in (rate, rate_if_longer)):
        return row
    extra_share = rate / rate_if_longer - 1
    words = f"{LENGTH_FACTOR - 1:.0%} longer: about {extra_share:+.0%} replicas and cost"
    return replace(row, matters=words, effect=extra_share)


def _lengths_of_counts(what: str, source: BinnedSource, field: str, key: str) -> Assumption:
    """Return the lengths of a source that only counts tokens per bin, as an input of the result.

    ``what`` names them, ``field`` is their column ("input_tokens" or "output_tokens"), and ``key``
    is their key in the scenario.
    """
    lengths = source.lengths()
    distribution = lengths.input if field == "input_tokens" else lengths.output
    value = f"mean {distribution.mean:,.0f} tokens, CV {distribution.cv:.3g}"
    if isinstance(distribution, SampledLength):
        source_words = "from the source's histograms of prompts and of answers"
        return Assumption(what, value, OBSERVED, source_words, key)
    if getattr(source.columns, field) is None:
        return Assumption(what, value, ASSUMED, "from the scenario, not in the file", key)
    spread = "from the scenario" if distribution.cv != FILE_CV else "assumed"
    source_words = f"mean from the file, spread (log-normal) {spread}"
    return Assumption(what, value, ASSUMED, source_words, key)


def _tiers(tiers: Sequence[Tier]) -> Iterator[Assumption]:
    """Yield the latency limits and the attainment target of each tier."""
    for i, tier in enumerate(tiers):
        limits = {"TTFT": tier.ttft_s, "TPOT": tier.tbt_s, "E2E": tier.e2e_s}
        stated = {name: limit for name, limit in limits.items() if limit is not None}
        words = ", ".join(f"{name} {duration(limit)}" for name, limit in stated.items())
        value = f"{words or 'no limit'} for {100 * tier.attainment:.4g}% of requests"
        if tier.deferrable:
            value += ", deferrable"
        yield Assumption(f"{SLO_OF}{tier.name}", value, ASSUMED, "scenario", f"tiers[{i}]")


def _speeds(study: Study) -> Iterator[Assumption]:
    """Yield the speed and the precision of each profile, with its error and source."""
    hardware, sizes = study.hardware, study.sizes
    for (m, g), profile in hardware.profiles.items():
        section, column = hardware.sections[m, g], hardware.columns[g]
        if column.spot:  # the same hardware as the owned GPU column
            continue
        name = f"{hardware.models[m].name} on {arrangement(section, profile)}"  # in every role
        source = profile.provenance
        if (m, g) in sizes.capacity:  # beyond the measured range, the source is weaker
            source = provenance_at(profile, sizes.extrapolated_share((m, g)))
        # The effect of the error is a share of replicas.
        value, effect_words, effect = f"{profile.kind} profile, {UNCHECKED}", "", None
        error = stated_error(profile)
        if error is not None:
            effect = error.value
            value = f"{profile.kind} profile, error {effect:.1%} ({error.basis})"
            effect_words = f"{effect:.0%} slower: about {effect:+.0%} replicas"
        what = f"Speed of {name}"
        yield Assumption(what, value, source.kind, source.source, "profiles", effect_words, effect)
        source_words = "the profile's own" if section.name else "scenario; default bf16"
        # A graph profile has precisions of its own.
        weights: str = section.precision
        cache: str = section.kv_precision
        if isinstance(profile, GraphProfile):
            weights = profile.graph.arrangement.weights
            cache = profile.graph.arrangement.kv_cache
        value = f"weights {weights}, KV cache {cache}"
        yield Assumption(f"Precision of {name}", value, ASSUMED, source_words, "profiles.precision")


def _serving(hardware: Hardware) -> Iterator[Assumption]:
    """Yield the settings of batching, KV transfer, routing and network latency."""
    for model, row in zip(hardware.models, hardware.serving, strict=True):
        caches = "prefix caches" if row.prefix_caching else "no prefix caches"
        value = f"{BATCHING[row.batching]} · {SCHEDULERS[row.scheduler]} · {caches}"
        yield Assumption(f"Batching of {model.name}", value, ASSUMED, "scenario", "serving")
    sources = dict(hardware.provenance)
    for (m, g), link in hardware.links.items():
        what = kv_transfer_title(hardware.models[m].name, hardware.columns[g].label)
        value, origin = f"{link.bytes_s / GIGA:,.4g} GB/s per replica", sources[what]
        yield Assumption(what, value, origin.kind, origin.source, "serving.kv_transfer")
    routing = hardware.routing
    value = (
        f"Replica: {ROUTERS[routing.instance]}. Region: by {ROUTERS[routing.sees]}. Overflow to "
        f"another region above {routing.region_threshold:.0%} KV memory."
    )
    source = "a router that knows every replica's load and adds no latency"
    yield Assumption("Routing", value, MODELLED, source, "fleet.routing")
    yield from _latencies(hardware)


def _latencies(hardware: Hardware) -> Iterator[Assumption]:
    """Yield the network latencies between regions."""
    source, key = "scenario; default 30 ms", "regions.latency_ms"
    for (i, home), (j, other) in combinations(enumerate(hardware.regions), 2):
        there_s, back_s = hardware.latency_s[i, j], hardware.latency_s[j, i]
        what = f"Latency between {home.name} and {other.name}"
        value = _latency_words(home.name, other.name, there_s, back_s)
        yield Assumption(what, value, ASSUMED, source, key)


def _latency_words(home: str, other: str, there_s: float, back_s: float) -> str:
    """Return the latencies between two regions in words.

    ``there_s`` is that from ``home`` to ``other`` in seconds, ``back_s`` the reverse. inf is a
    route closed by ``objective.reroute``.
    """
    if there_s == back_s:
        return "closed to requests both ways" if np.isinf(there_s) else _latency_one_way(there_s)
    there, back = _latency_one_way(there_s), _latency_one_way(back_s)
    return f"{home} to {other}: {there}; {other} to {home}: {back}"


def _latency_one_way(seconds: float) -> str:
    """Return the latency of one direction in words; inf: closed."""
    if np.isinf(seconds):
        return "closed to requests"
    return f"{1000 * seconds:,.4g} ms one way, constant"


def _regions(hardware: Hardware, sources: dict[str, Provenance]) -> Iterator[Assumption]:
    """Yield the prices, the carbon intensity and the PUE of each region.

    ``sources`` is the provenance by input, such as "Price of H100 in us-east".
    """
    for r, region in enumerate(hardware.regions):
        for g, column in enumerate(hardware.columns):
            name, key = "Price", "regions.usd_per_gpu_hour"
            if column.spot:
                name, key = "Spot price", "regions.spot"
            what = f"{name} of {hardware.gpus[g].name} in {region.name}"
            if what in sources:
                value = _price_words(hardware.usd_by_hour[:, r, g])
                source, words = sources[what], "cost, in proportion to its GPU-hours"
                yield Assumption(what, value, source.kind, source.source, key, words)
        what, value = f"Carbon intensity in {region.name}", f"{region.carbon_g_per_kwh:,.4g}"
        source, key = sources.get(what, GIVEN), "regions.carbon_g_per_kwh"
        yield Assumption(what, f"{value} g CO2e/kWh", source.kind, source.source, key)
        what, value = f"PUE in {region.name}", f"{region.pue:.4g}"
        source = sources.get(what, GIVEN)
        yield Assumption(what, value, source.kind, source.source, "regions.pue")


def _price_words(usd: FloatArray) -> str:
    """Return prices by UTC hour, ``[24]``, in words."""
    if usd.min() < usd.max():
        return f"${usd.min():,.4g} to ${usd.max():,.4g} per GPU and hour, by UTC hour"
    return f"${usd[0]:,.4g} per GPU and hour"


def _fleet(study: Study) -> Iterator[Assumption]:
    """Yield today's fleet, the cold start and the faults."""
    hardware = study.hardware
    source = "scenario" if hardware.today is not None else assumed_today(study.before.seconds)
    count = int(study.today.sum())
    value = f"{counted(count, 'replica')} at the start of the window"
    yield Assumption("Current fleet", value, ASSUMED, source, "fleet.today", "only the saving")
    value, source_words = f"{hardware.startup_s:,.6g} s", "scenario"
    starts = hardware.starts
    if starts is not None:
        value += f"; {starts.reclaim_s:,.6g} s for a lent replica, {starts.remote_s:,.6g} s where "
        value += "weights are fetched"
    elif hardware.startup_s == 600:
        source_words = "equals the default for local weights (SageServe, section 4)"
    yield Assumption("Cold start of a replica", value, ASSUMED, source_words, "fleet.startup_s")
    value = f"{len(hardware.faults)} stated" if hardware.faults else "none"
    yield Assumption("Faults", value, ASSUMED, "faults in the scenario only", "faults")


def _plan(study: Study) -> Iterator[Assumption]:
    """Yield the settings of the forecast and of the plan, such as spare replicas."""
    plan = study.settings.plan
    value: str = plan.forecast.method
    source_words = "updated at each scaling decision from past demand; error from backtests"
    yield Assumption("Forecast of demand", value, MODELLED, source_words, "forecast")
    yield from _percentiles(study)
    if len(study.hardware.regions) > 1:
        value = f"{plan.objective.epsilon:.0%} of a region's peak"
        what, key = "Minimum share served locally", "objective.epsilon"
        yield Assumption(what, value, ASSUMED, "scenario", key)
    if study.hardware.spot.any():
        value = f"at most {plan.objective.spot_share:.0%} of a model's replicas in a region"
        yield Assumption("Rests on spot", value, ASSUMED, "scenario", "objective.spot_share")
    yield _spare(plan)
    budgets = []
    if math.isfinite(plan.in_all.usd):
        budgets.append(f"${plan.in_all.usd:,.6g} in all")
    if math.isfinite(plan.each_hour.usd):
        budgets.append(f"${plan.each_hour.usd:,.6g} an hour")
    if budgets:
        yield Assumption("Budget", " and ".join(budgets), ASSUMED, "scenario", "objective.limits")


def _percentiles(study: Study) -> Iterator[Assumption]:
    """Yield the percentile of the forecast that is planned for, by group of tiers.

    Nothing is yielded if the study plans for no percentile.
    """
    quantiles = () if study.quantiles is None else study.quantiles.chosen_so_far
    tiers = [quantile.tier for _, quantile in quantiles]
    for at_once, quantile in quantiles:
        name = tier_label(quantile.tier, tiers) + (", all periods at once" if at_once else "")
        what, value = f"Planned percentile, {name}", str(quantile.planning_level)
        kind = MODELLED if quantile.basis == CHOSEN else ASSUMED
        yield Assumption(what, value, kind, quantile.why, "forecast.quantile")


def _spare(plan: PlanSettings) -> Assumption:
    """Return the losses (of replicas or of a region) for which the plan has spare replicas."""
    losses = []
    if plan.spare.instances:
        losses.append(f"any {counted(plan.spare.instances, 'replica')}")
    if plan.spare.region:
        losses.append("any one region")
    key = "objective.spare"
    if not losses:
        return Assumption(
            "Redundancy", "no spare replicas", ASSUMED, "the scenario sets no spare", key
        )
    source = "the scenario, else the level of assurance"
    return Assumption(
        "Redundancy", f"survives the loss of {' and '.join(losses)}", ASSUMED, source, key
    )

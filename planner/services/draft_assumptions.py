"""List the assumptions of a draft, with the reason for each and its effect on the fleet.

Effects are ratios of the capacity of one replica, by the fluid model at mean lengths
(``simulation.sizing.queueing``). Nothing is simulated.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from planner.domain.formats import milliseconds
from planner.domain.trace_statistics.context_limits import EVERY_LABEL, requests_beyond_context
from planner.domain.traffic.binned_source import FILE_CV
from planner.domain.verification.profile_error import stated_error
from planner.inputs import catalogue
from planner.inputs.catalogue.hardware import known_model
from planner.inputs.ingest.store import LENGTHS
from planner.inputs.scenario.document import parse
from planner.inputs.scenario.schema import Region, Scenario, Tier
from planner.models import Trace
from planner.services import drafts
from planner.services.draft_profiles import Serving, models_for
from planner.storage import row_arrays
from simulation.performance.profile import Profile
from simulation.sizing.queueing import largest_rate

LENGTH_FACTOR = 1.2  # how much longer lengths are, to show their effect
OTHER_FLEET_NOTE = "Another model or GPU type changes the fleet."


@dataclass(frozen=True, slots=True)
class Assumption:
    """One assumption of a draft, in words."""

    section: str  # part of the scenario form that changes it
    what: str
    value: str
    why: str
    matters: str = ""  # its effect on the fleet
    models: tuple[str, ...] = ()  # models that avoid the problem, to choose from
    warns: bool = False  # the draft does not keep what the file says


def draft_assumptions(trace: Trace, document: str, serving: Serving) -> tuple[Assumption, ...]:
    """Return the assumptions of a draft over ``trace``, in the order of the form.

    ``document`` is the draft as YAML. ``serving`` has the profile of each model that serves it.
    """
    draft = parse(document)
    return (
        *_models(trace, serving),
        *_context(trace, serving),
        *_region(trace, draft),
        *_limits(trace, draft),
        *_lengths(trace, draft, serving.profile),
        *_assumed_spread(trace),
        *_caches(trace),
        *_requests_without_answer(trace),
        *_ended_early(trace, draft),
    )


def _models(trace: Trace, serving: Serving) -> Iterator[Assumption]:
    """Yield the assumption on model and GPUs for each model label of the trace."""
    named_models = [label for label in trace.report.get("models") or [] if label]
    for label, served in serving.by_label.items() or [("", serving)]:
        profile, error = served.profile, stated_error(served.profile)
        error_words = "" if error is None else f", error about {error.value:.0%}"
        yield Assumption(
            section="profiles",
            what=f"Model and GPUs of {label}" if label else "Model and GPUs",
            value=f"{profile.model} on {profile.tp} x {profile.gpu}",
            why=f"{_serving_reason(served, label, named_models)}. Speed: {profile.provenance.kind}"
            f"{error_words}",
            matters=OTHER_FLEET_NOTE,
        )


def _context(trace: Trace, serving: Serving) -> Iterator[Assumption]:
    """Yield an assumption on requests that are too long for the chosen models."""
    if trace.kind != Trace.Kind.REQUESTS or not trace.store:
        return
    served = serving.by_label or {EVERY_LABEL: serving}
    models = {label: label_serving.profile.model for label, label_serving in served.items()}
    contexts = {
        label: (model, catalogue.shape(model).max_context) for label, model in models.items()
    }
    gpus = {label_serving.profile.gpu for label_serving in served.values()}
    for beyond in requests_beyond_context(row_arrays.local_path(trace.store), contexts):
        larger = models_for(beyond.longest, gpus, beyond.model)[:3]  # the three closest in size
        offer = f"Models with a large enough context: {', '.join(larger)}."
        yield Assumption(
            section="profiles",
            what="Requests beyond the context",
            value=f"{beyond.requests:,} of {trace.requests:,}",
            why=f"{beyond.model} takes {beyond.context:,} tokens and the longest request has "
            f"{beyond.longest:,}",
            matters="These requests are rejected. "
            + (offer if larger else "No built-in model has a large enough context."),
            models=() if serving.by_label else larger,
        )


def _serving_reason(serving: Serving, label: str, named_models: list[str]) -> str:
    """Return in words why this model serves the requests with the model name ``label``.

    ``label`` "" stands for all requests. ``named_models`` are the model names in the file.
    """
    model = serving.profile.model
    if label and serving.trace_names_model:
        return "your file names the model"
    if label:
        return f"no built-in model is called {label}: a recent one is used"
    if serving.trace_names_model:
        other_names = [name for name in named_models if known_model(name) != model]
        if other_names:
            return f"your file names the model, and {_first_names(other_names)}, all of it here"
        return "your file names the model"
    if named_models:
        return f"your file names {_first_names(named_models)}, and all of it is served by this one"
    if serving.longest_tokens:
        return (
            "your file does not name a model, and its longest request has "
            f"{serving.longest_tokens:,} tokens, more than the usual model takes"
        )
    return "your file does not name a model"


def _first_names(names: list[str]) -> str:
    """Return at most three names, such as "a, b, c and 2 more"."""
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown


def _region(trace: Trace, draft: Scenario) -> Iterator[Assumption]:
    """Yield the assumptions on region, price, cold start and time-to-first-token limit."""
    tier = draft.tiers[0]
    file_regions = [name for name in trace.report.get("regions") or [] if name]
    draft_regions = drafts.labels_in_draft(trace, "regions")
    if draft_regions:
        why = "your file names them" if len(draft_regions) > 1 else "your file names it"
    elif file_regions:
        why = f"your file names {_first_names(file_regions)}, and the draft plans one region"
    else:
        why = "your file has no regions"
    yield Assumption(
        section="regions",
        what="Regions and prices" if len(draft.regions) > 1 else "Region and price",
        value="; ".join(_region_words(region) for region in draft.regions),
        why=f"{why}. Prices are on demand",
        matters="Cost changes with the price. A farther region adds its latency to TTFT.",
        warns=bool(file_regions) and not draft_regions,
    )
    yield cold_start(draft)
    if (tier.ttft_ms or 0) > drafts.TTFT_MS:  # the draft loosened the usual limit
        yield Assumption(
            section="tiers",
            what=f"TTFT limit of {tier.name}",
            value=f"{(tier.ttft_ms or 0) / 1000:g} s (common: {drafts.TTFT_MS / 1000:g} s)",
            why="the common limit is too short: a long prompt of the trace takes half of this "
            "limit on an idle replica",
            matters="A lower limit needs faster GPUs, or a tier of its own for long prompts.",
        )


def _region_words(region: Region) -> str:
    """Return a region of a draft with its prices and its GPUs."""
    offers = region.usd_per_gpu_hour
    usd = {**catalogue.regions()[region.like or ""].usd_per_gpu_hour, **offers}
    prices = []
    for gpu, count in region.capacity.items():
        price = f"no known price of {gpu}"
        if gpu in usd:
            source_words = " (median of offers)" if gpu in offers else ""
            price = f"${usd[gpu]:,.2f} per {gpu}-hour{source_words}"
        prices.append(f"{price}, {count:,} available")
    return f"{region.name} (prices of {region.like}): {', '.join(prices)}"


def cold_start(draft: Scenario) -> Assumption:
    """Return the assumption on the cold start."""
    return Assumption(
        section="fleet",
        what="Cold start",
        value=f"{draft.fleet.startup_s / 60:g} min",
        why="weights are stored in the region (SageServe, section 4)",
        matters="Longer cold starts need earlier scale-up.",
    )


def _limits(trace: Trace, draft: Scenario) -> Iterator[Assumption]:
    """Yield the assumption on tiers: their shares of traffic and SLO limits, with the source."""
    draft_tiers = drafts.labels_in_draft(trace, "tiers")
    shares = _tier_shares(trace) if draft_tiers else draft.traffic.sources[0].tiers
    tiers = []
    for tier in draft.tiers:
        share = f"{shares[tier.name]:.0%} " if tier.name in shares else ""
        tiers.append(share + ", ".join([tier.name, *_limit_words(tier)]))
    file_tiers = [name for name in trace.report.get("tiers") or [] if name]
    file_words = "your file has no tiers"
    if file_tiers:
        file_words = f"your file names {_first_names(file_tiers)}, without limits"
    limit_source = (
        "The limits are common ones" if draft_tiers else "These are SageServe's (IW-F, IW-N)"
    )
    why = f"{file_words}. {limit_source}"
    yield Assumption(
        section="tiers",
        what="Tiers and their limits",
        value="; ".join(tiers),
        why=why,
        matters="Work that may wait longer needs fewer replicas at the peak.",
        warns=bool(file_tiers) and not draft_tiers,
    )


def _tier_shares(trace: Trace) -> dict[str, float]:
    """Return each tier's share of the requests of a demand file; empty if not counted."""
    counts: Counter[str] = Counter()
    for series in trace.report.get("series") or []:
        counts[series["tier"]] += series.get("requests") or 0
    total = counts.total()
    return {tier: count / total for tier, count in counts.items()} if total else {}


def _limit_words(tier: Tier) -> Iterator[str]:
    """Yield the limits of a tier in words."""
    limits = (("TTFT", tier.ttft_ms), ("TPOT", tier.tbt_ms), ("E2E", tier.e2e_ms))
    for name, limit_ms in limits:
        if limit_ms is not None:
            yield f"{name} {milliseconds(limit_ms)}"
    if tier.deferrable:
        yield "deferrable"


def _lengths(trace: Trace, draft: Scenario, profile: Profile) -> Iterator[Assumption]:
    """Yield the token lengths that the draft assumes because the file has none.

    Each says how many more replicas longer lengths need. ``profile`` is that of a replica.
    """
    isl, osl = drafts.mean_lengths(trace)
    max_rps, _ = largest_rate(profile, isl, osl)
    for what, field, longer_isl, longer_osl in (
        ("Prompt lengths", "input_tokens", LENGTH_FACTOR * isl, osl),
        ("Answer lengths", "output_tokens", isl, LENGTH_FACTOR * osl),
    ):
        lengths_by_source = [getattr(source, field) for source in draft.traffic.sources]
        assumed_lengths = [lengths for lengths in lengths_by_source if lengths]
        if not assumed_lengths:
            continue
        lengths = assumed_lengths[0]  # the same for every source
        rps_if_longer, _ = largest_rate(profile, longer_isl, longer_osl)
        more = max_rps / rps_if_longer - 1
        yield Assumption(
            section="sources",
            what=what,
            value=f"mean {lengths.mean:,.0f} tokens, spread (CV) {lengths.cv:g}",
            why="your file has none: these are from Azure's conversations of 2023",
            matters=f"If they are {LENGTH_FACTOR - 1:.0%} longer, about {more:.0%} more replicas "
            "and cost.",
        )


def _assumed_spread(trace: Trace) -> Iterator[Assumption]:
    """Yield the assumption on how lengths and arrivals vary, if the file has sums per bin only."""
    counts_tokens = any(
        series.get(column) is not None
        for series in trace.report.get("series") or []
        for column in ("input_tokens", "output_tokens")
    )
    if trace.kind != Trace.Kind.DEMAND or not counts_tokens:
        return
    if trace.store and row_arrays.exists(f"{trace.store}/{LENGTHS}"):
        return  # a live source counts requests by length
    yield Assumption(
        section="sources",
        what="Lengths and arrivals in a bin",
        value=f"log-normal lengths (CV {FILE_CV:g}), random arrivals",
        why="your file has sums per bin",
        matters="Long tails and bursts need more capacity at the same mean. A file of requests "
        "shows both.",
    )


def _caches(trace: Trace) -> Iterator[Assumption]:
    """Yield the assumption on prefix caches, if the file shows repeated prompts."""
    cached_share = drafts.cached_share(trace)
    repeated_share = drafts.repeated_blocks(trace)
    if cached_share:
        value, why = f"{cached_share:.0%} of prompt tokens are cached", "your file counts them"
    elif repeated_share:
        value = f"{repeated_share:.0%} of prompts repeat earlier ones"
        why = "your file has hashes of blocks, or sessions with growing prompts"
    else:
        return
    yield Assumption(
        section="sources",
        what="Prefix caches",
        value=f"on, {value}",
        why=why,
        matters="Cached tokens need no prefill. Without prefix caches the plan needs more "
        "replicas.",
    )


def _requests_without_answer(trace: Trace) -> Iterator[Assumption]:
    """Yield the assumption on requests without an answer, such as embeddings and scores."""
    if count := trace.report.get("unanswered"):
        yield Assumption(
            section="sources",
            what="Requests without an answer",
            value=f"{count:,} of {trace.requests:,}, as prompts alone",
            why="your file has no output tokens for them, as for embeddings and scores",
            matters="They need prefill and no decode. The TPOT limit does not apply to them.",
        )


def _ended_early(trace: Trace, draft: Scenario) -> Iterator[Assumption]:
    """Yield the assumptions on series of the file that end before the file does."""
    series = trace.report.get("series") or []
    trace_end = trace.report.get("end")
    early = [row["name"] for row in series if row.get("end") != trace_end]
    if early and draft.horizon.start == "end":
        yield Assumption(
            section="sources",
            what="Series that end early",
            value=_first_names(early),
            why="the file has no counts of them at its end",
            matters="They count as zero there, so the plan may be too small. A backtest of a day "
            "with all series has them.",
        )
    served = {source.series for source in draft.traffic.sources}
    if left_out := [name for name in early if name not in served]:
        yield Assumption(
            section="sources",
            what="Series left out",
            value=_first_names(left_out),
            why="they end before the window",
            matters="They have no demand in it. Choose an earlier window to plan them.",
        )

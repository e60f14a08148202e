"""Draft a complete first scenario for a trace, so that a newcomer can run it at once.

The draft is made so that its run succeeds. A short trace gets a shorter window, or a plan of the
time after the trace. Long prompts get a looser TTFT limit.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from math import ceil, floor, inf, isfinite
from types import MappingProxyType
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from forecasting.rules.arima import MIN_OBSERVED
from planner.domain.deployment_search.query import price_of
from planner.errors import NotReady
from planner.inputs import catalogue
from planner.inputs.scenario.document import dump_mapping, parse
from planner.inputs.scenario.schema.test_days import DRAFT_DAYS
from planner.models import Trace
from planner.policies.choice import DRAFTED
from planner.schema_types import Name
from planner.services.draft_profiles import Serving, choose_serving
from planner.services.draft_windows import HorizonChoice, WindowChoice
from planner.services.scenarios import free_name
from simulation.performance.profile import Profile, iteration_s
from simulation.sizing.queueing import largest_rate

FAST, RELAXED = "interactive", "relaxed"  # SageServe's IW-F and IW-N
REGION = "us-east"  # the region of a trace without regions
KEPT_LABELS: tuple[Literal["regions", "tiers"], ...] = ("regions", "tiers")
MOST_LABELS = 6  # a file with more regions (or tiers) gets one region (or the usual tiers)
DEFERRABLE = "batch", "offline", "bulk", "niw", "deferrable"  # in names of tiers that may wait
RELAXED_NAMES = "relaxed", "agent", "background", "iw-n"  # in names of tiers without a TPOT limit
DEADLINE = {"e2e_ms": 86_400_000, "deferrable": True}  # a day, as SageServe's NIW
RELAXED_TTFT_MS = 60_000
CAPACITY_GPUS = 512  # a region has a multiple of this
ASSUMED_INPUT = {"mean": 1155, "cv": 1.0}  # Azure 2023 conversation trace: mean ISL, spread near 1
ASSUMED_OUTPUT = {"mean": 211, "cv": 1.0}  # and mean OSL (Splitwise, ISCA 2024)
STARTUP_S = 600
TTFT_MS = 1000
LONG_PROMPT_FACTOR = 3  # factor on the mean: the 95th percentile of an exponential distribution
# Three more than a forecast needs: a partial first bin, an incomplete last bin, one spare.
HISTORY_BINS = MIN_OBSERVED + 3
WORTH_CACHING = 0.05  # with this share of repeated blocks or more, a draft has prefix caches
SHORT_PERIOD_S = 300  # for a trace that is too short for the usual window
SHORT_BINS_S = (60, 30, 10, 5, 1)  # bin widths for such a trace: the widest with SHORT_BINS bins
SHORT_BINS = 4
HOUR_S, DAY_S, WEEK_S = 3600, 86_400, 604_800
# Shortest traces to plan a day or a week on. The last request may come an hour before midnight.
LENGTH_OF_A_DAY_S, LENGTH_OF_A_WEEK_S = 2 * DAY_S - HOUR_S, WEEK_S - HOUR_S
# Requests of a window; a comparison replays them about a hundred times.
MAX_REPLAYED_REQUESTS = 2_000_000
PEAK_TO_MEAN = 3  # peak over mean: Azure 2024's code service by day
NAMES = TypeAdapter(list[Name])
Row = dict[str, Any]  # a mapping of the scenario document


def scenario_draft(
    trace: Trace,
    window: WindowChoice | None = None,
    horizon: HorizonChoice | None = None,
    serving: Serving | None = None,
    replicas_today: int | None = None,
) -> str:
    """Return the YAML of a new scenario for the traffic of ``trace``.

    ``serving`` has its models on built-in profiles; None: ``choose_serving`` chooses. The draft
    keeps the trace's regions and tiers if ``labels_in_draft`` allows. Otherwise it has one region
    and two interactive tiers. Each series of a demand file becomes a source. ``window`` is the part
    of the trace to plan; None: the last day, or less of a short trace. ``horizon`` plans the time
    after the trace instead. ``replicas_today`` is the size of the present fleet, with which savings
    are compared; it is used only if there is one profile.
    """
    if trace.state != Trace.State.READY:
        raise NotReady(f"Trace {trace.name} is not ready. Wait until it has been read.")
    serving = serving or choose_serving(trace)
    series, ended_note = trace.report.get("series", []), ""
    if horizon is None:
        series, ended_note = _series_in_window(trace, window)
    if ended_note:  # some series ended before the window, so their models are not used
        labels_in_window = {row.get("model") for row in series}
        used = {
            label: label_serving
            for label, label_serving in serving.by_label.items()
            if label in labels_in_window
        }
        serving = replace(serving, by_label=MappingProxyType(used))
    profiles = [model.profile for model in serving.per_model]
    regions = labels_in_draft(trace, "regions") or (REGION,)
    ttft_ms = max(_ttft_ms(trace, profile) for profile in profiles)
    data: Row = {
        "version": 1,
        "name": free_name(f"Plan for {trace.name}"),
        "description": " ".join(filter(None, (_ignored_labels(trace, serving), ended_note))),
        "models": [profile.model for profile in profiles],
        "profiles": [dict(model.row) for model in serving.per_model],
        "regions": [_region_row(trace, profiles, name) for name in regions],
        "tiers": _tier_rows(labels_in_draft(trace, "tiers") or (FAST, RELAXED), ttft_ms),
        "traffic": {"sources": _sources(trace, serving, series)},
        "fleet": _fleet(profiles, regions, replicas_today),
        "policies": list(DRAFTED),
        "test_days": [dict(day) for day in DRAFT_DAYS],
    }
    if cached_share(trace) or repeated_blocks(trace):
        data["serving"] = [{"prefix_caching": True}]
    _fit_window(data, trace, window, horizon)
    document = dump_mapping(data)
    parse(document)  # a draft that does not parse is a bug of this module: find it here
    return document


def _fleet(profiles: Sequence[Profile], regions: Sequence[str], replicas_today: int | None) -> Row:
    """Return the section ``fleet`` of a draft, with ``replicas_today`` if there is one profile."""
    fleet: Row = {"startup_s": STARTUP_S}
    if replicas_today is not None and len(profiles) == 1:
        (profile,) = profiles
        pool = {"model": profile.model, "gpu": profile.gpu}
        per_region, rest = divmod(replicas_today, len(regions))
        fleet["today"] = []
        for i, name in enumerate(regions):
            # The first regions get the rest, one replica each.
            replicas = per_region + 1 if i < rest else per_region
            fleet["today"].append(pool | {"region": name, "replicas": replicas})
    return fleet


def _series_in_window(trace: Trace, window: WindowChoice | None) -> tuple[list[Row], str]:
    """Return the series of a demand file that end after the window's start, and a note.

    The note names the other series, which have no demand to plan; "" if there are none. If every
    series ends before, return all of them. ``window`` None: the last day of the trace.
    """
    series = trace.report.get("series", [])
    start_s = trace.report.get("end_ns", 0) / 1e9 - DAY_S if window is None else window.start_s
    in_window = [row for row in series if _seconds(row.get("end", "")) > start_s]
    ended_names = [row["name"] for row in series if row not in in_window]
    if not in_window or not ended_names:
        return series, ""
    names = _first_names(ended_names)
    return in_window, f"Left out, because they end before the window: {names}."


def _first_names(names: Sequence[str]) -> str:
    """Return at most six names, and dots if there are more."""
    shown = ", ".join(names[:6])
    return f"{shown} ..." if len(names) > 6 else shown


def _seconds(moment: str) -> float:
    """Return a time of a trace's report in seconds; infinity for "".

    For a date they count since 1970. A trace without dates has times such as "+600s", which count
    from its start.
    """
    if not moment:
        return inf
    if moment.startswith("+"):
        return float(moment.removeprefix("+").removesuffix("s"))
    return datetime.fromisoformat(moment).timestamp()


def labels_in_draft(trace: Trace, kind: Literal["regions", "tiers"]) -> tuple[str, ...]:
    """Return the regions or tiers of a file if a draft keeps them, else an empty tuple.

    It keeps them if every series has one, if they are at most MOST_LABELS, and if a scenario can
    have their names.
    """
    names = trace.report.get(kind) or []
    series = trace.report.get("series", [])
    column = kind.removesuffix("s")
    all_labelled = all(row.get(column) for row in series)
    try:
        NAMES.validate_python(names)
    except ValidationError:
        return ()
    return tuple(names) if all_labelled and len(names) <= MOST_LABELS else ()


def _tier_rows(names: Sequence[str], ttft_ms: int) -> list[Row]:
    """Return the tiers of a draft: interactive ones, then relaxed ones, then deferrable ones.

    Words in its name decide to which of them a tier belongs. If all of them are deferrable by name,
    none is.
    """
    deferrable = [name for name in names if _has_word(name, DEFERRABLE)]
    if len(deferrable) == len(names):
        deferrable = []
    interactive: list[Row] = []
    relaxed: list[Row] = []
    waiting: list[Row] = []
    for name in names:
        if name in deferrable:
            waiting.append({"name": name, **DEADLINE})
        elif _has_word(name, RELAXED_NAMES):
            relaxed.append({"name": name, "ttft_ms": max(RELAXED_TTFT_MS, ttft_ms)})
        else:
            interactive.append({"name": name, "ttft_ms": ttft_ms, "tbt_ms": 100})
    return [*interactive, *relaxed, *waiting]


def _has_word(name: str, words: Sequence[str]) -> bool:
    """Return whether the name of a tier has one of the words."""
    return any(word in name.lower() for word in words)


def _region_row(trace: Trace, profiles: Sequence[Profile], name: str) -> Row:
    """Return the region ``name`` of a draft, with GPUs for the trace's peak on ``profiles``.

    Prices are those of a built-in region. Types without one get the median of the known offers.
    """
    peak_rps = PEAK_TO_MEAN * sum(rate for _, rate in _series_rates(trace))
    capacity: Counter[str] = Counter()  # GPUs by type
    for profile in profiles:
        replica_rps, _ = largest_rate(profile, *mean_lengths(trace))
        capacity[profile.gpu] += region_gpus(peak_rps, replica_rps, profile.tp)
    like = _built_in_region(name if labels_in_draft(trace, "regions") else "", capacity)
    row: Row = {"name": name, "like": like, "capacity": dict(capacity)}
    unpriced = sorted(capacity.keys() - catalogue.regions()[like].usd_per_gpu_hour)
    offers = {gpu: price_of(gpu, {}).usd for gpu in unpriced}
    prices = {gpu: usd for gpu, usd in offers.items() if isfinite(usd)}
    if prices:
        row["usd_per_gpu_hour"] = prices
    return row


def _built_in_region(name: str, gpus: Mapping[str, int]) -> str:
    """Return the region with prices for most ``gpus``, if possible one named ``name...``."""
    prices = {region: spec.usd_per_gpu_hour for region, spec in catalogue.regions().items()}
    candidates = [region for region in prices if region.startswith(name)] or list(prices)
    return max(candidates, key=lambda region: len(gpus.keys() & prices[region]))


def _sources(trace: Trace, serving: Serving, all_series: Sequence[Row]) -> list[Row]:
    """Return the traffic sources of a draft: one for each of ``all_series`` of a demand file.

    A trace of requests gets one source for each model name in ``serving.by_label``, or a single
    one.
    """
    common: Row = {"trace": trace.name, "model": serving.profile.model}
    if not labels_in_draft(trace, "regions"):
        common["regions"] = {REGION: 1.0}
    if not labels_in_draft(trace, "tiers"):
        common["tiers"] = {FAST: 0.7, RELAXED: 0.3}
    models = {label: model.profile.model for label, model in serving.by_label.items()}
    if trace.kind == Trace.Kind.REQUESTS:
        sources = [common | {"series": label, "model": model} for label, model in models.items()]
        return sources or [common]
    sources = []
    for series in all_series:
        source = common | {"series": series["name"]}
        if models:
            source["model"] = models[series["model"]]
        if series.get("input_tokens") is None:
            source["input_tokens"] = ASSUMED_INPUT
        if series.get("output_tokens") is None:
            source["output_tokens"] = ASSUMED_OUTPUT
        sources.append(source)
    return sources


def _ignored_labels(trace: Trace, serving: Serving) -> str:
    """Return in words the models, regions and tiers in the file that the draft does not use."""
    kinds: list[Literal["models", "regions", "tiers"]] = [] if serving.by_label else ["models"]
    kinds += [kind for kind in KEPT_LABELS if not labels_in_draft(trace, kind)]
    labels = []
    for kind in kinds:
        names = [name for name in trace.report.get(kind) or [] if name]
        if names:
            labels.append(f"{kind} {_first_names(names)}")
    if not labels:
        return ""
    return (
        f"The file names {'; '.join(labels)}. This draft does not separate them. Name yours "
        "alike and leave out model, regions or tiers of a source to use its labels."
    )


def _fit_window(
    data: Row, trace: Trace, window: WindowChoice | None, horizon: HorizonChoice | None
) -> None:
    """Set the window, bins and horizon of a draft in the document ``data``.

    ``window`` is the part of the trace to plan. Without one, plan the time after the trace that
    ``horizon`` states; None: the last day, or less of a short trace. A window with many requests is
    simulated only in part.
    """
    rates = _series_rates(trace)
    # A trace is as long as its longest series. The others count as zero outside their own bins.
    span_s = max(seconds for seconds, _ in rates)
    window_s = _fit_bins_and_window(data, span_s, trace.report.get("bin_s") or 0)
    if horizon is not None:
        window_s = _length_after_trace(horizon, span_s, window_s)
        data["horizon"] = data.get("horizon", {}) | {"start": "end", "duration_s": window_s}
    requests = sum(rate for _, rate in rates) * window_s  # in the window
    if window is not None:
        requests = window.requests
        start: str | int = round(window.start_s)  # a trace without dates counts from its start
        if trace.report.get("clock") != "relative":
            start = f"{datetime.fromtimestamp(window.start_s, UTC):%Y-%m-%dT%H:%M:%SZ}"
        data["horizon"] = {"start": start, "duration_s": window.duration_s}
    if requests > MAX_REPLAYED_REQUESTS:
        data["traffic"]["max_replayed"] = MAX_REPLAYED_REQUESTS


def _length_after_trace(horizon: HorizonChoice, span_s: float, window_s: float) -> float:
    """Return the length (s) of the window to plan after a trace of ``span_s`` seconds.

    A trace of a week allows the whole ``horizon``, one of two days a day. A shorter trace allows
    ``window_s``, in whole hours if it is at least one.
    """
    if span_s >= LENGTH_OF_A_WEEK_S:
        return horizon.replayed_s
    if span_s >= LENGTH_OF_A_DAY_S:
        return DAY_S
    return floor(window_s / HOUR_S) * HOUR_S if window_s >= HOUR_S else window_s


def _fit_bins_and_window(data: Row, span_s: float, file_bin_s: float) -> float:
    """Return the length (s) of the window to plan for a trace of ``span_s`` seconds.

    It is a day, if the trace is long enough, and ``data`` stays as it is. For a shorter trace, set
    in ``data`` narrower bins and a shorter window, so that enough history is left to forecast from.
    If there is no such window, plan the time after the trace. ``file_bin_s`` is the bin width of
    the file; 0 if it has no bins.
    """
    # Bins as wide as the trace allows, but not narrower than in the file.
    narrow_enough_s = [s for s in SHORT_BINS_S if s <= span_s / SHORT_BINS]  # widest first
    widest_s = narrow_enough_s[0] if narrow_enough_s else SHORT_BINS_S[-1]
    bin_s = max(widest_s, file_bin_s)
    window_s: float = DAY_S if span_s >= 2 * DAY_S else span_s / 2
    # The longest window that leaves history to forecast from, and time for the first cold start.
    startup_bins = ceil(STARTUP_S / bin_s)
    longest_window_s = span_s - startup_bins * bin_s - HISTORY_BINS * bin_s
    if window_s <= longest_window_s:  # a longer trace has wider bins, but its window fits
        return window_s
    period_s = ceil(SHORT_PERIOD_S / bin_s) * bin_s
    data["traffic"]["bin_s"] = bin_s
    if longest_window_s >= period_s:
        window_s = floor(longest_window_s / period_s) * period_s
        data["horizon"] = {"duration_s": window_s, "period_s": period_s}
        return window_s
    # Too short to hold a window: plan the time after it.
    window_s = ceil(max(HOUR_S, 4 * bin_s) / period_s) * period_s
    data["horizon"] = {"start": "end", "duration_s": window_s, "period_s": period_s}
    data["forecast"] = {"method": "last-value"}
    return window_s


def region_gpus(peak_rps: float, replica_rps: float, tp: int) -> int:
    """Return the number of GPUs for a region of a draft: twice what the peak of traffic needs.

    It is a multiple of CAPACITY_GPUS, so the region's limit does not bind. ``peak_rps`` is the
    traffic and ``replica_rps`` the capacity of a replica, in requests/s. ``tp`` is the number of
    GPUs of a replica.
    """
    needed_gpus = 2 * peak_rps / replica_rps * tp if replica_rps > 0 else CAPACITY_GPUS
    return max(1, ceil(needed_gpus / CAPACITY_GPUS)) * CAPACITY_GPUS


def _series_rates(trace: Trace) -> list[tuple[float, float]]:
    """Return (duration in s, mean requests/s) of each series; a trace of requests is one series."""
    report = trace.report
    requests_per_row = report.get("sample") or 1.0  # above 1 for a sampled file
    if trace.kind == Trace.Kind.REQUESTS:
        seconds = max(1.0, trace.length_s)
        return [(seconds, requests_per_row * trace.requests / seconds)]
    rates = []
    for series in report.get("series", []):
        seconds = series["bins"] * series["bin_s"]
        rates.append((seconds, requests_per_row * (series["requests"] or 0) / seconds))
    return rates or [(1.0, 0.0)]


def _ttft_ms(trace: Trace, profile: Profile) -> int:
    """Return a TTFT limit (ms): twice the time of a long prompt on an idle replica, or TTFT_MS."""
    mean_prompt_tokens, _ = mean_lengths(trace)
    prompt_tokens = LONG_PROMPT_FACTOR * mean_prompt_tokens
    iterations = ceil(prompt_tokens / profile.max_batch_tokens)
    tokens = prompt_tokens / iterations  # in one iteration
    attention_pairs = tokens * prompt_tokens / 2  # a token attends to half the prompt on average
    prompt_s = iterations * float(iteration_s(profile, 0, 0, tokens, attention_pairs))
    return max(TTFT_MS, ceil(2 * prompt_s) * 1000)


def cached_share(trace: Trace) -> float:
    """Return the share of all input tokens that a prefix cache served; 0 if not counted."""
    cached, total = trace.report.get("cached_tokens"), trace.report.get("input_tokens")
    return cached / total if cached and total else 0.0


def repeated_blocks(trace: Trace) -> float:
    """Return the share of prompt blocks that repeat earlier ones; 0 if below WORTH_CACHING."""
    share = float(trace.report.get("repeated_blocks") or 0.0)
    return share if share >= WORTH_CACHING else 0.0


def mean_lengths(trace: Trace) -> tuple[float, float]:
    """Return the mean tokens (of a prompt, of an answer), each the largest mean of a series.

    If the file does not count tokens, they are ASSUMED_INPUT and ASSUMED_OUTPUT.
    """
    counted = [trace.report, *trace.report.get("series", [])]

    def largest_mean(field: str, default: float) -> float:
        """Return the largest mean of ``field`` per request; ``default`` if it is not counted."""
        with_counts = (row for row in counted if row.get(field) and row.get("requests"))
        return float(max((row[field] / row["requests"] for row in with_counts), default=default))

    prompt = largest_mean("input_tokens", ASSUMED_INPUT["mean"])
    return prompt, largest_mean("output_tokens", ASSUMED_OUTPUT["mean"])

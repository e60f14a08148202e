"""Draft a first scenario for a trace, complete, so that a newcomer can run it at once.

The draft avoids obstacles to its run. A short trace gets a shorter window, or a plan of the time
after it. Long prompts get a looser limit.
"""

from collections.abc import Sequence
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
REGION = "us-east"  # of a trace without regions
MOST_LABELS = 6  # regions or tiers of a file that a draft keeps
DEFERRABLE = "batch", "offline", "bulk", "niw", "deferrable"  # in names of tiers that may wait
RELAXED_NAMES = "relaxed", "agent", "background", "iw-n"  # in names of tiers without a TPOT limit
DEADLINE = {"e2e_ms": 86_400_000, "deferrable": True}  # a day, as SageServe's NIW
RELAXED_TTFT_MS = 60_000
CAPACITY_GPUS = 512  # GPUs of a region, or the next multiple that the traffic may need
ASSUMED_INPUT = {"mean": 1155, "cv": 1.0}  # Azure 2023 conversation trace: mean ISL, spread near 1
ASSUMED_OUTPUT = {"mean": 211, "cv": 1.0}  # and mean OSL (Splitwise, ISCA 2024)
STARTUP_S = 600
TTFT_MS = 1000
LONG_PROMPT_FACTOR = 3  # factor on the mean: the 95th percentile of an exponential distribution
# three more: a partial first bin, an incomplete last bin, one spare
HISTORY_BINS = MIN_OBSERVED + 3
WORTH_CACHING = 0.05  # share of repeated blocks from which a draft has prefix caches
SHORT_PERIOD_S = 300  # for a trace that is too short for the usual window
SHORT_BINS_S = (60, 30, 10, 5, 1)  # bins of such a trace: the widest that cut it into SHORT_BINS
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
    """Return the YAML of a new scenario over ``trace``.

    It has the trace's models on built-in profiles (``serving``), and its regions and tiers
    (``labels_in_draft``). Otherwise it has one region, and interactive tiers. Every series of a
    demand file becomes its own source. ``window`` is the part of the trace to plan, by default what
    its length allows. ``horizon`` plans the time after the trace instead. ``replicas_today`` is the
    present fleet of the one profile, the baseline of savings.
    """
    if trace.state != Trace.State.READY:
        raise NotReady(f"Trace {trace.name} is not ready. Wait until it has been read.")
    serving = serving or choose_serving(trace)
    series, ended = trace.report.get("series", []), ""
    if horizon is None:
        series, ended = _series_in_window(trace, window)
    if ended:  # models of series that ended have no demand
        labels = {one.get("model") for one in series}
        used = {label: model for label, model in serving.labels.items() if label in labels}
        serving = replace(serving, labels=MappingProxyType(used))
    profiles = [model.profile for model in serving.all]
    ttft_ms = max(_ttft_ms(trace, profile) for profile in profiles)
    data: Row = {
        "version": 1,
        "name": free_name(f"Plan for {trace.name}"),
        "description": " ".join(filter(None, (_ignored_labels(trace, serving), ended))),
        "models": [profile.model for profile in profiles],
        "profiles": [dict(model.row) for model in serving.all],
        "regions": [_region_row(trace, profiles, name) for name in _regions(trace)],
        "tiers": _tier_rows(labels_in_draft(trace, "tiers") or (FAST, RELAXED), ttft_ms),
        "traffic": {"sources": _sources(trace, serving, series)},
        "fleet": {"startup_s": STARTUP_S},
        "policies": list(DRAFTED),
        "test_days": [dict(day) for day in DRAFT_DAYS],
    }
    if replicas_today is not None and len(profiles) == 1:
        pool, regions = {"model": profiles[0].model, "gpu": profiles[0].gpu}, _regions(trace)
        each, rest = divmod(replicas_today, len(regions))
        data["fleet"]["today"] = [
            pool | {"region": name, "replicas": each + (i < rest)} for i, name in enumerate(regions)
        ]
    if cached_share(trace) or repeated_blocks(trace):
        data["serving"] = [{"prefix_caching": True}]
    _fit_window(data, trace, window, horizon)
    document = dump_mapping(data)
    parse(document)  # a draft that does not parse is a bug of this module: find it here
    return document


def _series_in_window(trace: Trace, window: WindowChoice | None) -> tuple[list[Row], str]:
    """Return the series of a demand file that last into the window, and a note on the others.

    Series that end before have no demand to plan. If all do, return all of them. ``window`` None:
    the last day of the trace. The note is "" if no series is left out.
    """
    series = trace.report.get("series", [])
    start_s = trace.report.get("end_ns", 0) / 1e9 - DAY_S if window is None else window.start_s
    lasting = [one for one in series if _seconds(one.get("end", "")) > start_s]
    ended = [one["name"] for one in series if one not in lasting]
    if not lasting or not ended:
        return series, ""
    names = f"{', '.join(ended[:6])}{' ...' if len(ended) > 6 else ''}"
    return lasting, f"Left out, because they end before the window: {names}."


def _seconds(moment: str) -> float:
    """Return a ``moment`` of a trace's report in seconds: since 1970 for a date, else as stated.

    Without dates it is the time since the start of the trace, such as "+600s". For "", return
    infinity.
    """
    if not moment:
        return inf
    if moment.startswith("+"):
        return float(moment[1:-1])
    return datetime.fromisoformat(moment).timestamp()


def labels_in_draft(trace: Trace, kind: Literal["regions", "tiers"]) -> tuple[str, ...]:
    """Return the regions or tiers of a file if a draft can keep them, else an empty tuple.

    It keeps them if every request has one, they are few, and a scenario can have their names.
    """
    names = trace.report.get(kind) or []
    series = trace.report.get("series", [])
    labelled = all(one.get(kind.removesuffix("s")) for one in series)
    return tuple(names) if labelled and len(names) <= MOST_LABELS and _are_names(names) else ()


def _are_names(labels: Sequence[str]) -> bool:
    """Return whether a scenario can use the labels of a file as names."""
    try:
        NAMES.validate_python(labels)
    except ValidationError:
        return False
    return True


def _regions(trace: Trace) -> tuple[str, ...]:
    """Return the names of a draft's regions: those in the file, else one."""
    return labels_in_draft(trace, "regions") or (REGION,)


def _tier_rows(names: Sequence[str], ttft_ms: int) -> list[Row]:
    """Return the tiers of a draft, with limits by their names; those that may wait come last.

    Without a tier of another kind, tiers of batch work are interactive too.
    """

    def has(words: Sequence[str], name: str) -> bool:
        """Return whether one of the words is in the name of a tier."""
        return any(word in name.lower() for word in words)

    waiting = [name for name in names if has(DEFERRABLE, name)]
    waiting = waiting if len(waiting) < len(names) else []
    others = [name for name in names if name not in waiting]
    relaxed = [name for name in others if has(RELAXED_NAMES, name)]
    return [
        *({"name": name, "ttft_ms": ttft_ms, "tbt_ms": 100}
          for name in others if name not in relaxed),
        *({"name": name, "ttft_ms": max(RELAXED_TTFT_MS, ttft_ms)} for name in relaxed),
        *({"name": name, **DEADLINE} for name in waiting),
    ]  # fmt: skip


def _region_row(trace: Trace, profiles: Sequence[Profile], name: str) -> Row:
    """Return a region of a draft, with GPUs for the trace's peak on ``profiles``.

    Prices are those of the built-in region that has the most of these GPU types, among those whose
    names begin as ``name``, if there are any. Other types get the median of the known prices.
    """
    peak_rps = PEAK_TO_MEAN * sum(rate for _, rate in _series_rates(trace))
    capacity: dict[str, int] = {}
    for profile in profiles:
        replica_rps = largest_rate(profile, *mean_lengths(trace))[0]
        gpus = region_gpus(peak_rps, replica_rps, profile.tp)
        capacity[profile.gpu] = capacity.get(profile.gpu, 0) + gpus
    regions = catalogue.regions()
    named = labels_in_draft(trace, "regions")
    alike = [other for other in regions if named and other.startswith(name)] or list(regions)
    region = max(alike, key=lambda other: len(capacity.keys() & regions[other].usd_per_gpu_hour))
    unpriced = sorted(capacity.keys() - regions[region].usd_per_gpu_hour)
    prices = {gpu: usd for gpu in unpriced if isfinite(usd := price_of(gpu, {}).usd)}
    row: Row = {"name": name, "like": region, "capacity": capacity}
    return row | ({"usd_per_gpu_hour": prices} if prices else {})


def _sources(trace: Trace, serving: Serving, all_series: Sequence[Row]) -> list[Row]:
    """Return the traffic sources of a draft: one per series of a demand file.

    A trace of requests gets one source per label of ``serving``, or one in all.
    """
    common: Row = {
        "trace": trace.name,
        "model": serving.profile.model,
    }
    if not labels_in_draft(trace, "regions"):
        common["regions"] = {REGION: 1.0}
    if not labels_in_draft(trace, "tiers"):
        common["tiers"] = {FAST: 0.7, RELAXED: 0.3}
    if trace.kind == Trace.Kind.REQUESTS:
        if not serving.labels:
            return [common]
        return [
            common | {"series": label, "model": model.profile.model}
            for label, model in serving.labels.items()
        ]
    sources = []
    for series in all_series:
        source = common | {"series": series["name"]}
        if serving.labels:
            source["model"] = serving.labels[series["model"]].profile.model
        if series.get("input_tokens") is None:
            source["input_tokens"] = ASSUMED_INPUT
        if series.get("output_tokens") is None:
            source["output_tokens"] = ASSUMED_OUTPUT
        sources.append(source)
    return sources


def _ignored_labels(trace: Trace, serving: Serving) -> str:
    """Return in words the models, regions and tiers in the file that the draft does not use."""
    model_kind = () if serving.labels else ("models",)
    label_kinds = [kind for kind in ("regions", "tiers") if not labels_in_draft(trace, kind)]
    labels = [
        f"{kind} {', '.join(names[:6])}{' ...' if len(names) > 6 else ''}"
        for kind in (*model_kind, *label_kinds)
        if (names := [name for name in trace.report.get(kind) or [] if name])
    ]
    if not labels:
        return ""
    return (
        f"The file names {'; '.join(labels)}. This draft does not separate them. Name yours "
        "alike and leave out model, regions or tiers of a source to use its labels."
    )


def _fit_window(
    data: Row, trace: Trace, chosen: WindowChoice | None, horizon: HorizonChoice | None
) -> None:
    """Set the window, bins and horizon of a draft in ``data``.

    By default a study plans the last day. ``chosen`` is another part of the trace. ``horizon``
    plans the time after the trace. A large window is simulated only in part.
    """
    rates = _series_rates(trace)
    span_s = max(seconds for seconds, _ in rates)  # outside its own bins, a series counts as zero
    window_s = _fit_short_trace(data, span_s, trace.report.get("bin_s") or 0)
    if horizon is not None:
        window_s = _length_after_trace(horizon, span_s, window_s)
        data["horizon"] = data.get("horizon", {}) | {"start": "end", "duration_s": window_s}
    replayed = sum(rate for _, rate in rates) * window_s
    if chosen is not None:
        replayed = chosen.requests
        data["horizon"] = {"start": _start(trace, chosen), "duration_s": chosen.duration_s}
    if replayed > MAX_REPLAYED_REQUESTS:
        data["traffic"]["max_replayed"] = MAX_REPLAYED_REQUESTS


def _length_after_trace(horizon: HorizonChoice, span_s: float, window_s: float) -> float:
    """Return the length (s) of a window after a trace of ``span_s`` seconds, in whole hours.

    ``window_s`` is the length that fits a short trace. Less than an hour stays as it is.
    """
    if span_s >= LENGTH_OF_A_WEEK_S:
        return horizon.replayed_s
    if span_s >= LENGTH_OF_A_DAY_S:
        return DAY_S
    return floor(window_s / HOUR_S) * HOUR_S if window_s >= HOUR_S else window_s


def _fit_short_trace(data: Row, span_s: float, file_bin_s: float) -> float:
    """Return the length of the window (s) for a trace of ``span_s`` seconds: usually a day.

    For a short trace, set narrower bins, and a shorter window in ``data``, or one after the trace,
    so that enough history is left to forecast from. ``file_bin_s`` is the width of the file's own
    bins, 0 if none.
    """
    narrow_s = next((s for s in SHORT_BINS_S if s <= span_s / SHORT_BINS), SHORT_BINS_S[-1])
    bin_s = max(narrow_s, file_bin_s)
    window_s: float = DAY_S if span_s >= 2 * DAY_S else span_s / 2
    # The longest window that leaves history to forecast from, and time for the first cold start.
    longest_s = span_s - ceil(STARTUP_S / bin_s) * bin_s - HISTORY_BINS * bin_s
    if window_s <= longest_s:  # a longer trace has wider bins, but its window fits
        return window_s
    period_s = ceil(SHORT_PERIOD_S / bin_s) * bin_s
    data["traffic"]["bin_s"] = bin_s
    if longest_s >= period_s:
        window_s = floor(longest_s / period_s) * period_s
        data["horizon"] = {"duration_s": window_s, "period_s": period_s}
        return window_s
    # Too short to hold a window: plan the time after it.
    window_s = ceil(max(HOUR_S, 4 * bin_s) / period_s) * period_s
    data["horizon"] = {"start": "end", "duration_s": window_s, "period_s": period_s}
    data["forecast"] = {"method": "last-value"}
    return window_s


def _start(trace: Trace, chosen: WindowChoice) -> str | int:
    """Return the start of the window as a date; for a trace without dates, in seconds."""
    if trace.report.get("clock") == "relative":
        return round(chosen.start_s)
    return f"{datetime.fromtimestamp(chosen.start_s, UTC):%Y-%m-%dT%H:%M:%SZ}"


def region_gpus(peak_rps: float, replica_rps: float, tp: int) -> int:
    """Return the GPUs of a region: twice what the traffic needs at its peak.

    ``peak_rps`` and ``replica_rps``, what one replica serves, are in requests/s. ``tp`` is the GPUs
    of a replica. With so many, the plan and not the region's limit decides the size of the fleet.
    """
    needed = 2 * peak_rps / replica_rps * tp if replica_rps > 0 else CAPACITY_GPUS
    return max(1, ceil(needed / CAPACITY_GPUS)) * CAPACITY_GPUS


def _series_rates(trace: Trace) -> list[tuple[float, float]]:
    """Return the duration (s) and mean requests/s of each series.

    A trace of requests counts as one series.
    """
    report = trace.report
    one_in = report.get("sample") or 1.0  # each row of the file stands for so many requests
    if trace.kind == Trace.Kind.REQUESTS:
        seconds = max(1.0, trace.length_s)
        return [(seconds, one_in * trace.requests / seconds)]
    rates = []
    for series in report.get("series", []):
        seconds = series["bins"] * series["bin_s"]
        rates.append((seconds, one_in * (series["requests"] or 0) / seconds))
    return rates or [(1.0, 0.0)]


def _ttft_ms(trace: Trace, profile: Profile) -> int:
    """Return a TTFT limit in ms: twice the time of the trace's long prompts on an idle replica."""
    prompt = LONG_PROMPT_FACTOR * mean_lengths(trace)[0]
    iterations = ceil(prompt / profile.max_batch_tokens)
    tokens = prompt / iterations  # tokens per iteration; on average it attends to half the prompt
    needed_s = 2 * iterations * float(iteration_s(profile, 0, 0, tokens, tokens * prompt / 2))
    return max(TTFT_MS, ceil(needed_s) * 1000)


def cached_share(trace: Trace) -> float:
    """Return the share of all input tokens that a prefix cache served; 0 if not counted."""
    cached, total = (trace.report.get(name) for name in ("cached_tokens", "input_tokens"))
    return cached / total if cached and total else 0.0


def repeated_blocks(trace: Trace) -> float:
    """Return the share of prompt blocks that repeat earlier ones; 0 if below WORTH_CACHING."""
    share = float(trace.report.get("repeated_blocks") or 0.0)
    return share if share >= WORTH_CACHING else 0.0


def mean_lengths(trace: Trace) -> tuple[float, float]:
    """Return the mean tokens (of a prompt, of an answer), each the largest of all series.

    If the file does not count tokens, they are ASSUMED_INPUT and ASSUMED_OUTPUT.
    """
    counted = [trace.report, *trace.report.get("series", [])]

    def largest_mean(field: str, default: float) -> float:
        with_counts = (row for row in counted if row.get(field) and row.get("requests"))
        return float(max((row[field] / row["requests"] for row in with_counts), default=default))

    prompt = largest_mean("input_tokens", ASSUMED_INPUT["mean"])
    return prompt, largest_mean("output_tokens", ASSUMED_OUTPUT["mean"])

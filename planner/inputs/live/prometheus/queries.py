"""Build the PromQL query of each metric of an engine."""

from dataclasses import dataclass

from planner.inputs.live.prometheus.names import POWER, Engine, Kind, Metric
from planner.inputs.live.samples import AMOUNTS, WORDS
from planner.inputs.live.settings import PrometheusSettings

# Each rank of a process exports the same gauges, so they must not add up.
RANKS = ("tp_rank", "pp_rank", "moe_ep_rank")


@dataclass(frozen=True, slots=True)
class ServerMetrics:
    """The engines and the power metric that one server reports."""

    engines: tuple[Engine, ...]
    power: bool


@dataclass(frozen=True, slots=True)
class MetricQuery:
    """One metric and its query."""

    engine: str
    what: str
    metric: str
    query: str
    words: str  # label of the quantity


def queries(
    settings: PrometheusSettings, present: ServerMetrics, bin_s: int
) -> tuple[MetricQuery, ...]:
    """Return the queries that a reading would send for the metrics ``present``, for display."""
    metric_queries = [
        MetricQuery(
            engine.title,
            metric.what,
            name,
            query_of(settings, engine, metric, part, bin_s),
            _metric_words(metric),
        )
        for engine in present.engines
        for metric in engine.metrics
        for name in metric.names
        for part in parts_of(metric, name)
    ]
    if present.power:
        query = power_query(settings, bin_s)
        metric_queries.append(
            MetricQuery("DCGM", POWER.what, POWER.names[0], query, _metric_words(POWER))
        )
    return tuple(metric_queries)


def _metric_words(metric: Metric) -> str:
    """Return the label of a metric's quantity; a histogram of tokens is of lengths."""
    lengths = metric.kind is Kind.HISTOGRAM and metric.what in AMOUNTS
    return f"{WORDS[metric.what]} per request" if lengths else WORDS[metric.what]


def parts_of(metric: Metric, name: str) -> tuple[str, ...]:
    """Return the names of the series to query: sum and count for the mean of a histogram."""
    return (f"{name}_sum", f"{name}_count") if metric.kind is Kind.MEAN else (name,)


def query_of(
    settings: PrometheusSettings, engine: Engine, metric: Metric, name: str, bin_s: int
) -> str:
    """Return the PromQL query of a metric for bins of ``bin_s`` seconds."""
    model = "" if settings.model else settings.model_label or engine.model_label
    region = "" if settings.region else settings.region_label or ""
    tier = "" if settings.tier else settings.tier_label or ""
    by = tuple(label for label in (model, region, tier) if label)
    if metric.kind in (Kind.COUNTER, Kind.MEAN):
        return f"last_over_time({name}{label_matchers(settings, engine)}[{open_bin(bin_s)}])"
    if metric.kind is Kind.HISTOGRAM:
        within = f"increase({name}_bucket{label_matchers(settings, engine)}[{bin_s}s])"
        return f"sum by ({', '.join((*by, 'le'))}) ({within})"
    within = f"avg_over_time({name}{label_matchers(settings, engine)}[{bin_s}s])"
    if metric.kind is Kind.GAUGE_MEAN:
        return f"avg by ({', '.join(by)}) ({within})"
    return f"sum by ({', '.join(by)}) (max without ({', '.join(RANKS)}) ({within}))"


def open_bin(bin_s: int) -> str:
    """Return the range selector of a bin, without its left edge.

    The edge belongs to the bin before. Until Prometheus 3 a range included both ends, so a scrape
    on the left edge would be counted twice, and could make up for a missing one.
    """
    return f"{1000 * bin_s - 1}ms"


def power_query(settings: PrometheusSettings, bin_s: int) -> str:
    """Return the query of the mean power of all GPUs in bins of ``bin_s`` seconds, by region."""
    grouping = f" by ({settings.region_label})" if settings.region_label else ""
    return (
        f"sum{grouping} (avg_over_time({POWER.names[0]}{label_matchers(settings, None)}[{bin_s}s]))"
    )


def label_matchers(settings: PrometheusSettings, engine: Engine | None) -> str:
    """Return PromQL label matchers with quoted values; "" without any."""
    terms = [f"{label}={_quote(value)}" for label, value in settings.match.items()]
    if engine is not None:
        terms += [f"{label}!={_quote(value)}" for label, value in engine.leave_out]
    return f"{{{', '.join(terms)}}}" if terms else ""


def _quote(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'

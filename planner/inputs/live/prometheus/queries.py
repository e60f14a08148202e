"""Declare the metrics of serving engines (``engines.toml``), and build their PromQL queries."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from enum import Enum
from itertools import chain
from pathlib import Path
from typing import Any

from planner.inputs.live.samples import AMOUNTS, WORDS
from planner.inputs.live.settings import PrometheusSettings

# Each rank of a process exports the same gauges, so they must not add up.
RANKS = ("tp_rank", "pp_rank", "moe_ep_rank")


class Kind(Enum):
    """The type of a metric, and how it is combined over replicas."""

    COUNTER = "counter"
    GAUGE_SUM = "sum of gauges"  # over replicas
    GAUGE_MEAN = "mean of gauges"
    HISTOGRAM = "histogram"
    MEAN = "mean of a histogram"  # sum / count: exact, while buckets are coarse


# Tables of engines.toml; of the gauges, kv_use is a mean.
TABLES = {"counters": Kind.COUNTER, "gauges": Kind.GAUGE_SUM, "histograms": Kind.HISTOGRAM}


@dataclass(frozen=True, slots=True)
class Metric:
    """One quantity and the names under which an engine reports it."""

    what: str  # a column of samples, from AMOUNTS, GAUGES or COUNTED
    kind: Kind
    names: tuple[str, ...]

    def present(self, on_server: frozenset[str]) -> Metric:
        """Return the metric with only those of its names that are ``on_server``."""
        suffix = {Kind.HISTOGRAM: "_bucket", Kind.MEAN: "_sum"}.get(self.kind, "")
        names = tuple(name for name in self.names if name + suffix in on_server)
        return Metric(self.what, self.kind, names)


@dataclass(frozen=True, slots=True)
class Engine:
    """A serving engine, or a front end that forwards to engines, with its metrics."""

    name: str
    title: str
    model_label: str  # "": the engine has none
    metrics: tuple[Metric, ...]
    signs: tuple[str, ...]  # prefixes of metric names that only this engine has
    source: str
    front: bool = False  # it is a router or gateway, which only forwards requests
    leave_out: tuple[tuple[str, str], ...] = ()  # label and value of series that are not counted


def _engine(name: str, declared: dict[str, Any]) -> Engine:
    """Return an engine of ``engines.toml`` with its metrics, in the order of their declaration."""
    metrics = []
    for table, kind in TABLES.items():
        for quantity, text in declared.pop(table, {}).items():
            own_kind = Kind.GAUGE_MEAN if quantity == "kv_use" else kind
            names = text.split()
            names += [name.replace(":", "_") for name in names if ":" in name]  # as Ray writes them
            metrics.append(Metric(quantity, own_kind, tuple(names)))
    metrics += [Metric("tbt_mean_s", Kind.MEAN, m.names) for m in metrics if m.what == "tbt_s"]
    declared["signs"] = tuple(declared["signs"])
    declared["leave_out"] = tuple(map(tuple, declared.get("leave_out", ())))
    return Engine(name, metrics=tuple(metrics), **declared)


ENGINES = tuple(
    _engine(name, declared)
    for name, declared in tomllib.loads(
        (Path(__file__).parent / "engines.toml").read_text(encoding="utf-8")
    ).items()
)
# Power of all GPUs that the exporter sees, whatever runs on them.
POWER = Metric("power_w", Kind.GAUGE_SUM, ("DCGM_FI_DEV_POWER_USAGE",))


def engines_present(on_server: frozenset[str], engine: str = "auto") -> tuple[Engine, ...]:
    """Return the engines to read from a server, each with the metrics that the server has.

    ``on_server`` are the names of the server's metrics. An engine must count requests, and have a
    metric with its own prefix, as several engines share other names. If ``engine`` is not "auto",
    only that engine is returned, with any prefix. A front end (router or gateway) is only returned
    if no engine counts requests.
    """
    engines = []
    for candidate in ENGINES:
        if engine not in ("auto", candidate.name):
            continue
        on_server_metrics = (metric.present(on_server) for metric in candidate.metrics)
        metrics = tuple(metric for metric in on_server_metrics if metric.names)
        counts_requests = any(metric.what == "requests" for metric in metrics)
        names = chain.from_iterable(metric.names for metric in metrics)
        has_own_prefix = any(name.startswith(candidate.signs) for name in names)
        if counts_requests and (has_own_prefix or engine != "auto"):
            engines.append(replace(candidate, metrics=metrics))
    without_front_ends = [candidate for candidate in engines if not candidate.front]
    return tuple(without_front_ends or engines[:1])


@dataclass(frozen=True, slots=True)
class ServerMetrics:
    """What one server reports: metrics of engines, and perhaps the power of GPUs."""

    engines: tuple[Engine, ...]  # each with the metrics that the server has
    power: bool  # it has the metric POWER


@dataclass(frozen=True, slots=True)
class MetricQuery:
    """One metric and its query."""

    engine: str  # its title
    what: str  # the quantity, a column of samples
    metric: str  # its name on the server
    query: str  # in PromQL
    words: str  # label of the quantity


def queries(
    settings: PrometheusSettings, present: ServerMetrics, bin_s: int
) -> tuple[MetricQuery, ...]:
    """Return the queries that a reading would send for the metrics ``present``, for display."""
    metric_queries = [
        MetricQuery(
            engine=engine.title,
            what=metric.what,
            metric=name,
            query=query_of(settings, engine, metric, part, bin_s),
            words=_metric_words(metric),
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
    """Return the names of the series to query for a metric: for a mean, the sum and the count."""
    return (f"{name}_sum", f"{name}_count") if metric.kind is Kind.MEAN else (name,)


def query_of(
    settings: PrometheusSettings, engine: Engine, metric: Metric, name: str, bin_s: int
) -> str:
    """Return the PromQL query of a metric for bins of ``bin_s`` seconds.

    ``name`` is one of the metric's series (``parts_of``). Histograms and gauges are summed, or
    averaged, by the labels of model, region and tier that the settings do not fix.
    """
    matchers = label_matchers(settings, engine)
    # The reader computes increases itself, from the last scrape in each bin.
    if metric.kind in (Kind.COUNTER, Kind.MEAN):
        return f"last_over_time({name}{matchers}[{open_bin(bin_s)}])"
    model = "" if settings.model else settings.model_label or engine.model_label
    region = "" if settings.region else settings.region_label
    tier = "" if settings.tier else settings.tier_label
    by = ", ".join(filter(None, (model, region, tier)))
    if metric.kind is Kind.HISTOGRAM:
        within = f"increase({name}_bucket{matchers}[{bin_s}s])"
        return f"sum by ({f'{by}, le' if by else 'le'}) ({within})"
    within = f"avg_over_time({name}{matchers}[{bin_s}s])"
    if metric.kind is Kind.GAUGE_MEAN:
        return f"avg by ({by}) ({within})"
    # All ranks of a process report the same gauge, so count it once.
    return f"sum by ({by}) (max without ({', '.join(RANKS)}) ({within}))"


def open_bin(bin_s: int) -> str:
    """Return the duration for a PromQL range over one bin: one millisecond less than the bin.

    A scrape on the left edge belongs to the bin before. Until Prometheus 3 a range included both
    ends, so that scrape would be counted twice, and could stand for a missing one.
    """
    return f"{1000 * bin_s - 1}ms"


def power_query(settings: PrometheusSettings, bin_s: int) -> str:
    """Return the query of the mean power of all GPUs in bins of ``bin_s`` seconds, by region."""
    grouping = f" by ({settings.region_label})" if settings.region_label else ""
    return (
        f"sum{grouping} (avg_over_time({POWER.names[0]}{label_matchers(settings, None)}[{bin_s}s]))"
    )


def label_matchers(settings: PrometheusSettings, engine: Engine | None) -> str:
    """Return the PromQL matchers for the labels of a source's series, such as ``{job="vllm"}``.

    Series that ``engine`` says not to count are left out. "" if nothing is to be matched.
    """
    terms = [f"{label}={_quote(value)}" for label, value in settings.match.items()]
    if engine is not None:
        terms += [f"{label}!={_quote(value)}" for label, value in engine.leave_out]
    return f"{{{', '.join(terms)}}}" if terms else ""


def _quote(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'

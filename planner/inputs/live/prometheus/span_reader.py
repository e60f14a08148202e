"""Read a span of time from Prometheus as samples per bin."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from planner.errors import SourceError
from planner.inputs.live.prometheus.client import MOST_POINTS, Prometheus, QueryTimes, TimeSeries
from planner.inputs.live.prometheus.counters import increases, wants_extremes
from planner.inputs.live.prometheus.names import POWER, Engine, Kind, Metric, engines_present
from planner.inputs.live.prometheus.queries import (
    ServerMetrics,
    label_matchers,
    open_bin,
    parts_of,
    power_query,
    query_of,
)
from planner.inputs.live.samples import (
    AMOUNTS,
    GAUGES,
    HISTOGRAMS,
    KEYS,
    Samples,
    bins_frame,
    no_histograms,
)
from planner.inputs.live.settings import PrometheusSettings
from simulation.arrays import BoolArray, FloatArray

Key = tuple[str, str, str]  # model, region, tier; "" if unknown
MOST_BINS = MOST_POINTS - 1  # of one span; counters need one more bin
# The labels that identify a process in Prometheus.
TARGET = ("job", "instance")
MISSING = -1.0  # marks an amount that withdraws the value of an earlier reading


@dataclass(frozen=True, slots=True)
class Span:
    """A time span of ``bins`` bins of ``bin_s`` seconds from ``start_s`` on (epoch seconds)."""

    start_s: int
    bin_s: int
    bins: int

    @property
    def end_s(self) -> int:
        return self.start_s + self.bins * self.bin_s

    @property
    def edges(self) -> QueryTimes:
        """Return the end of the bin before the first, and the ends of all bins."""
        return QueryTimes(self.start_s, self.bin_s, self.bins + 1)

    @property
    def ends(self) -> QueryTimes:
        return QueryTimes(self.start_s + self.bin_s, self.bin_s, self.bins)

    def spans(self, most: int = MOST_BINS) -> Iterator[Span]:
        """Yield consecutive parts of the span with at most ``most`` bins each."""
        for first in range(0, self.bins, most):
            count = min(most, self.bins - first)
            yield Span(self.start_s + first * self.bin_s, self.bin_s, count)


@dataclass(frozen=True, slots=True, eq=False)
class _CounterIncrease:
    """The increase of a counter for one key, arrays ``[bins]``; NaN without a scrape."""

    key: Key
    amount: FloatArray
    missing: BoolArray  # bins of a long gap between scrapes
    targets: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class _Bucket:
    """The counts of one histogram bucket over time."""

    least: float
    most: float
    counts: FloatArray  # [bins], not cumulative


def find(
    client: Prometheus, settings: PrometheusSettings, start_s: float, end_s: float
) -> ServerMetrics:
    """Return the engines with samples between two times; raise SourceError if there are none."""
    selector = label_matchers(settings, None)
    metric_names = client.names(start_s, end_s, selector if settings.match else "")
    engines = engines_present(metric_names, settings.engine)
    if not engines:
        every = "vLLM, SGLang, TensorRT-LLM, TGI, Dynamo or llm-d"
        which = every if settings.engine == "auto" else settings.engine
        raise SourceError(
            f"Of {len(metric_names):,} metrics there, none counts requests of {which}. Check "
            "match, and that the engines' metrics are on and scraped (SGLang: --enable-metrics)."
        )
    return ServerMetrics(engines, bool(POWER.present(metric_names).names))


def read_span(
    client: Prometheus, settings: PrometheusSettings, present: ServerMetrics, span: Span
) -> Samples:
    """Return all samples of the span.

    A bin of a long gap between the scrapes of a running counter has no amount: it is a gap, not
    zero. If several engines count the same model, only the first is used.
    """
    tables: list[pl.DataFrame] = []
    counted: list[pl.DataFrame] = []
    taken: set[Key] = set()
    for engine in present.engines:
        amounts, histograms = _engine(client, settings, engine, span)
        own_keys = {key for key in amounts if key not in taken}
        taken |= own_keys
        tables += [_frame(key, span, amounts[key]) for key in sorted(own_keys)]
        counted += [
            _histogram_frame(key, what, bucket, span)
            for (key, what), buckets in histograms.items()
            if key in own_keys
            for bucket in buckets
        ]
    if present.power:
        tables += _power(client, settings, span)
    known = pl.any_horizontal(pl.col(*AMOUNTS, *GAUGES).is_not_null())
    bins = pl.concat(tables).filter(known) if tables else bins_frame([]).clear()
    return Samples(span.bin_s, bins, pl.concat(counted) if counted else no_histograms())


def _engine(
    client: Prometheus, settings: PrometheusSettings, engine: Engine, span: Span
) -> tuple[dict[Key, dict[str, FloatArray]], dict[tuple[Key, str], list[_Bucket]]]:
    """Return what an engine's metrics say of a span.

    The first dictionary has counts and gauges per bin, by series and quantity. The second has the
    buckets of histograms, also by series and quantity.
    """
    amounts: dict[Key, dict[str, FloatArray]] = defaultdict(dict)
    histograms: dict[tuple[Key, str], list[_Bucket]] = {}
    missing: dict[Key, BoolArray] = {}
    no_bins = np.zeros(span.bins, bool)
    for metric in engine.metrics:
        for name in metric.names:  # former names fill the bins that the present name lacks
            if metric.kind is Kind.MEAN:
                for key, values in _means(client, settings, engine, metric, name, span).items():
                    _fill(amounts[key], metric.what, values)
                continue
            query = query_of(settings, engine, metric, name, span.bin_s)
            if metric.kind is Kind.COUNTER:
                for counter in _counter_increases(client, settings, engine, name, span):
                    _fill(amounts[counter.key], metric.what, counter.amount)
                    missing[counter.key] = missing.get(counter.key, no_bins) | counter.missing
                    if metric.what == "requests" and not engine.front:
                        _fill(amounts[counter.key], "replicas", counter.targets)
            elif metric.kind is Kind.HISTOGRAM:
                courses = client.range(query, span.ends)
                for key, buckets in _buckets(courses, settings, engine).items():
                    histograms.setdefault((key, metric.what), buckets)
            else:
                for gauge in client.range(query, span.ends):
                    _fill(amounts[_key(gauge.labels, settings, engine)], metric.what, gauge.values)
    # Amounts of one bin belong together: if one counter was missed, none of them is known.
    for key, bins in missing.items():
        for what in AMOUNTS:
            if what in amounts[key]:
                amounts[key][what] = np.where(bins, MISSING, amounts[key][what])
    return amounts, histograms


def _fill(row: dict[str, FloatArray], what: str, values: FloatArray) -> None:
    # Present names are read first, so a former name only fills unknown bins.
    row[what] = np.where(np.isnan(row[what]), values, row[what]) if what in row else values


def _counter_increases(
    client: Prometheus, settings: PrometheusSettings, engine: Engine, name: str, span: Span
) -> Iterator[_CounterIncrease]:
    """Yield a counter's increase per bin for each series, with the number of targets seen.

    A target is one server that Prometheus scrapes. A bin is missing if a target's reset in it hides
    part of the increase.
    """
    selector = f"{name}{label_matchers(settings, engine)}[{open_bin(span.bin_s)}]"
    values_by_labels = _values_by_labels(client.range(f"last_over_time({selector})", span.edges))
    if not values_by_labels:
        return
    order = sorted(values_by_labels)
    last = np.array([values_by_labels[labels] for labels in order])
    named = [tuple(dict(labels).get(label, "") for label in TARGET) for labels in order]
    target_numbers = {target: number for number, target in enumerate(dict.fromkeys(named))}
    targets = np.array([target_numbers[target] for target in named], np.int64)
    lowest = highest = None
    # Query the extremes only if a counter was reset or a target is new.
    if wants_extremes(last, targets):
        unknown = np.full(last.shape[1], np.nan)
        extremes = [
            _values_by_labels(client.range(f"{which}_over_time({selector})", span.edges))
            for which in ("min", "max")
        ]
        lowest, highest = (
            np.array([bounds.get(labels, unknown) for labels in order]) for bounds in extremes
        )
    growth = increases(last, lowest, highest, targets=targets)
    rows: dict[Key, list[int]] = defaultdict(list)
    for row, labels in enumerate(order):
        rows[_key(dict(labels), settings, engine)].append(row)
    for key, own_rows in rows.items():
        missing: BoolArray = np.logical_or.reduce(growth.missing[own_rows])
        seen = growth.there[own_rows].any(axis=0) & ~missing
        scraped = np.zeros((len(target_numbers), span.bins), bool)
        np.logical_or.at(scraped, targets[own_rows], growth.there[own_rows])
        count = scraped.sum(axis=0).astype(np.float64)
        yield _CounterIncrease(
            key,
            np.where(seen, growth.amount[own_rows].sum(axis=0), np.nan),
            missing,
            np.where(count > 0, count, np.nan),
        )


def _means(
    client: Prometheus,
    settings: PrometheusSettings,
    engine: Engine,
    metric: Metric,
    name: str,
    span: Span,
) -> dict[Key, FloatArray]:
    """Return the mean of a histogram per bin, by key: increase of its sum over that of its count.

    Both are read as counters, so a bin with one scrape has a mean. From Prometheus 3 on,
    ``increase`` gives nothing for such a bin.
    """
    total, count = (
        {
            counter.key: counter.amount
            for counter in _counter_increases(client, settings, engine, part, span)
        }
        for part in parts_of(metric, name)
    )
    return {
        key: np.divide(total[key], grown, out=np.full(span.bins, np.nan), where=(grown > 0))
        for key, grown in count.items()
        if key in total
    }


def _values_by_labels(
    courses: Sequence[TimeSeries],
) -> dict[tuple[tuple[str, str], ...], FloatArray]:
    """Return the values of each series by its labels, without the metric's name."""
    return {
        tuple(sorted((k, v) for k, v in course.labels.items() if k != "__name__")): course.values
        for course in courses
    }


def _buckets(
    courses: Sequence[TimeSeries], settings: PrometheusSettings, engine: Engine
) -> dict[Key, list[_Bucket]]:
    """Return the buckets of a histogram by key, with counts per bucket instead of cumulative."""
    upto: dict[Key, dict[float, FloatArray]] = defaultdict(dict)
    for course in courses:
        try:
            upper_bound = float(course.labels.get("le", "nan"))
        except ValueError:
            continue
        if upper_bound == upper_bound:
            upto[_key(course.labels, settings, engine)][upper_bound] = course.values
    by_key = {}
    for key, cumulative in upto.items():
        bounds = sorted(cumulative)
        table = np.nan_to_num(np.array([cumulative[bound] for bound in bounds]))
        # A missing value counts as 0 here, but cumulative counts must not fall.
        table = np.maximum.accumulate(table, axis=0)
        alone = np.diff(table, axis=0, prepend=0.0)
        lower = [0.0, *bounds[:-1]]
        by_key[key] = [_Bucket(*bucket) for bucket in zip(lower, bounds, alone, strict=True)]
    return by_key


def _key(labels: Mapping[str, str], settings: PrometheusSettings, engine: Engine) -> Key:
    """Return model, region and tier from settings, or else from a series' labels."""
    model = settings.model or labels.get(settings.model_label or engine.model_label, "")
    region = settings.region or labels.get(settings.region_label or "", "")
    tier = settings.tier or labels.get(settings.tier_label or "", "")
    return model, region, tier


def _power(client: Prometheus, settings: PrometheusSettings, span: Span) -> list[pl.DataFrame]:
    """Return the watts of each region per bin, as tables."""
    tables = []
    for course in client.range(power_query(settings, span.bin_s), span.ends):
        region = settings.region or course.labels.get(settings.region_label or "", "")
        tables.append(_frame(("", region, ""), span, {"power_w": course.values}))
    return tables


def _frame(key: Key, span: Span, columns: Mapping[str, FloatArray]) -> pl.DataFrame:
    """Return a table with the bins of a span, labels and value columns."""
    table = {
        "bin_start": span.start_s + span.bin_s * np.arange(span.bins, dtype=np.int64),
        **{name: _nulls_for_unknown(values) for name, values in columns.items()},
    }
    labels = (pl.lit(value).alias(name) for name, value in zip(KEYS, key, strict=True))
    return bins_frame(pl.DataFrame(table).with_columns(*labels))


def _nulls_for_unknown(values: FloatArray) -> pl.Series:
    """Return the values as a series with null for unknown amounts and NaN for withdrawn ones."""
    series = pl.Series(values).fill_nan(None)
    return series.set(series == MISSING, np.nan)


def _histogram_frame(key: Key, what: str, bucket: _Bucket, span: Span) -> pl.DataFrame:
    """Return the rows of the bins in which the bucket counted something."""
    inside = np.flatnonzero(bucket.counts > 0)
    fixed = dict(zip(KEYS, key, strict=True)) | {
        "origin": "", "what": what, "least": bucket.least, "most": bucket.most,
    }  # fmt: skip
    columns = {"bin_start": span.start_s + span.bin_s * inside, "count": bucket.counts[inside]}
    rows = pl.DataFrame(columns).with_columns(pl.lit(v).alias(name) for name, v in fixed.items())
    return rows.select(pl.col(name).cast(kind) for name, kind in HISTOGRAMS.items())

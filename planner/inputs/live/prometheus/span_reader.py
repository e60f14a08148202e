"""Read a span of time from Prometheus as samples per bin."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from planner.errors import SourceError
from planner.inputs.live.prometheus.client import MOST_POINTS, Prometheus, QueryTimes, TimeSeries
from planner.inputs.live.prometheus.queries import (
    POWER,
    Engine,
    Kind,
    Metric,
    ServerMetrics,
    engines_present,
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
from simulation.arrays import BoolArray, FloatArray, IntArray

MOST_SPREAD = 6  # bins of a gap over which growth is spread; in a longer one, demand may change
Key = tuple[str, str, str]  # model, region, tier; "" if unknown
Labels = tuple[tuple[str, str], ...]  # (name, value) of one series, sorted
MOST_BINS = MOST_POINTS - 1  # of one span; counters need one more bin
# The labels that identify a process in Prometheus.
TARGET = ("job", "instance")
MISSING = -1.0  # marks an amount that withdraws the value of an earlier reading


@dataclass(frozen=True, slots=True, eq=False)
class Increases:
    """Increases of counters between scrapes, by series and bin, ``[series, bins]``.

    ``amount`` is 0 if the series is absent. ``missing`` marks bins of a long gap during which the
    series kept counting, so that the amount of each bin is unknown.
    """

    amount: FloatArray
    missing: BoolArray
    known: BoolArray  # scraped in the bin, or in a gap whose growth is spread


def increases(
    last: FloatArray, lowest: FloatArray, highest: FloatArray, *, targets: IntArray
) -> Increases:
    """Return the increase of each counter in each bin, and whether it is known.

    ``last`` ``[series, bins + 1]`` is the last scrape within each bin, NaN without one. Its first
    column is the bin before. ``lowest`` and ``highest`` have the same shape: the smallest and the
    largest scrape in the bin, or ``last`` if ``wants_extremes`` is False. ``targets`` ``[series]``
    is the number of the process of each series.

    A target is a process that Prometheus scrapes.

    - A counter that fell was reset. It counted its present value after the reset. Before, it
      counted from the last scrape of the bin before up to ``highest``.
    - A series that returns after missing scrapes with no smaller value is the same process. Its
      growth is spread evenly over the bins in between and the bin of its return. If these are more
      than MOST_SPREAD bins, their amounts are ``missing``.
    - A series that returns with a smaller value is a new process. Nothing was counted in between.
    - A new series of a target that was seen in the bin before counts from 0: it is the first event
      with these labels.
    - A new series of a new target counts from its first scrape in the bin (``lowest``), because the
      target may have run unseen before.
    """
    scraped = ~np.isnan(last)
    previous, previous_column = _previous_scrapes(last)
    is_next_bin = previous_column == np.arange(last.shape[1]) - 1
    fell = scraped & (last < previous)
    grew = scraped & (last >= previous)
    is_first = scraped & (previous_column < 0)

    amount = np.where(grew & is_next_bin, last - previous, 0.0)
    amount[fell] = last[fell]
    rose_before_reset = fell & is_next_bin & (highest > previous)
    amount[rose_before_reset] += (highest - previous)[rose_before_reset]
    # Whether a target had a scrape in the bin before, [target, bin].
    target_seen = np.zeros((int(targets.max(initial=-1)) + 1, last.shape[1] + 1), bool)
    np.logical_or.at(target_seen[:, 1:], targets, scraped)  # "or" over the series of each target
    seen_before = target_seen[targets, :-1]
    is_new_label = is_first & seen_before
    amount[is_new_label] = last[is_new_label]
    is_new_target = is_first & ~seen_before
    amount[is_new_target] = (last - lowest)[is_new_target]

    missing, known = np.zeros(last.shape, bool), scraped.copy()
    # A loop is fast enough, because few series return.
    for row, column in np.argwhere(grew & ~is_next_bin):
        gap = slice(previous_column[row, column] + 1, column + 1)
        bins = gap.stop - gap.start
        if bins > MOST_SPREAD:
            missing[row, gap] = True
        else:
            amount[row, gap] = (last[row, column] - previous[row, column]) / bins
            known[row, gap] = True
    return Increases(amount[:, 1:], missing[:, 1:], known[:, 1:])


def _previous_scrapes(last: FloatArray) -> tuple[FloatArray, IntArray]:
    """Return the last scrape before each point of ``last [series, points]``, and its column.

    Both have the shape of ``last``. Without a scrape before, they are NaN and -1.
    """
    own_column = np.where(np.isnan(last), -1, np.arange(last.shape[1]))  # -1: no scrape
    latest_column = np.maximum.accumulate(own_column, axis=1)
    # Shift by one point, so that a point's own scrape does not count.
    column = np.hstack([np.full((len(last), 1), -1), latest_column[:, :-1]])
    previous = np.take_along_axis(last, np.maximum(column, 0), axis=1)
    previous[column < 0] = np.nan
    return previous, column


def wants_extremes(last: FloatArray, targets: IntArray) -> bool:
    """Return whether ``increases`` needs extremes: a counter fell, or a target is new.

    ``last`` has the last reading of each counter, ``[counter, bin]``. ``targets`` are those of the
    counters.
    """
    if bool((np.diff(last, axis=1) < 0).any()):
        return True
    is_scraped = ~np.isnan(last)
    for target in np.unique(targets):
        scraped_bins = is_scraped[targets == target].any(axis=0)
        if scraped_bins.any() and not scraped_bins[0]:  # its first reading is in a later bin
            return True
    return False


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

    def spans(self) -> Iterator[Span]:
        """Yield consecutive parts of the span with at most MOST_BINS bins each."""
        for first in range(0, self.bins, MOST_BINS):
            count = min(MOST_BINS, self.bins - first)
            yield Span(self.start_s + first * self.bin_s, self.bin_s, count)


@dataclass(frozen=True, slots=True, eq=False)
class _CounterIncrease:
    """The increase of a counter for one model, region and tier, arrays ``[bins]``."""

    key: Key
    amount: FloatArray  # NaN without a scrape
    missing: BoolArray  # bins of a long gap between scrapes
    targets: FloatArray  # number of targets (processes) scraped; NaN if none

    @classmethod
    def of(
        cls, key: Key, growth: Increases, targets: IntArray, rows: Sequence[int]
    ) -> _CounterIncrease:
        """Return the sum of the series ``rows``; ``targets`` ``[series]`` are their processes."""
        missing: BoolArray = np.logical_or.reduce(growth.missing[rows])
        is_known = growth.known[rows]  # [rows, bin]
        is_any_known = is_known.any(axis=0) & ~missing
        amount = np.where(is_any_known, growth.amount[rows].sum(axis=0), np.nan)
        scraped = np.zeros((int(targets.max()) + 1, is_any_known.size), bool)  # [target, bin]
        np.logical_or.at(scraped, targets[rows], is_known)  # "or" over the series of each target
        count = scraped.sum(axis=0).astype(np.float64)
        return cls(key, amount, missing, np.where(count > 0, count, np.nan))


def find(
    client: Prometheus, settings: PrometheusSettings, start_s: float, end_s: float
) -> ServerMetrics:
    """Return the engines whose metrics a server has in a time span; or raise SourceError."""
    selector = label_matchers(settings, None)
    metric_names = client.names(start_s, end_s, selector if settings.match else "")
    engines = engines_present(metric_names, settings.engine)
    if not engines:
        every = "vLLM, SGLang, TensorRT-LLM, TGI, Dynamo or llm-d"
        which = every if settings.engine == "auto" else settings.engine
        raise SourceError(
            f"None of the source's {len(metric_names):,} metrics counts requests of {which}. Check "
            "match, and that the engines' metrics are on and scraped (SGLang: --enable-metrics)."
        )
    return ServerMetrics(engines, bool(POWER.present(metric_names).names))


def read_span(
    client: Prometheus, settings: PrometheusSettings, present: ServerMetrics, span: Span
) -> Samples:
    """Return the samples of a span of time from the metrics ``present`` on a server.

    A bin of a long gap between the scrapes of a running counter has no amount: it is a gap, not
    zero. If several engines count the same model, region and tier, only the first is used.
    """
    tables: list[pl.DataFrame] = []
    histogram_tables = [no_histograms()]
    already_read: set[Key] = set()
    for engine in present.engines:
        amounts, histograms = _EngineReader(client, settings, engine, span).read()
        own_keys = amounts.keys() - already_read
        already_read |= own_keys
        tables += [_frame(key, span, amounts[key]) for key in sorted(own_keys)]
        histogram_tables += [table for (key, _), table in histograms.items() if key in own_keys]
    if present.power:
        for series in client.range(power_query(settings, span.bin_s), span.ends):
            region = settings.region or series.labels.get(settings.region_label or "", "")
            tables.append(_frame(("", region, ""), span, {"power_w": series.values}))
    known = pl.any_horizontal(pl.col(*AMOUNTS, *GAUGES).is_not_null())
    bins = pl.concat(tables).filter(known) if tables else bins_frame([]).clear()
    return Samples(span.bin_s, bins, pl.concat(histogram_tables))


@dataclass(frozen=True, slots=True)
class _EngineReader:
    """A reading of one engine's metrics over a span of time."""

    client: Prometheus
    settings: PrometheusSettings
    engine: Engine
    span: Span

    def read(
        self,
    ) -> tuple[dict[Key, dict[str, FloatArray]], dict[tuple[Key, str], pl.DataFrame]]:
        """Return counts and gauges per bin by key and quantity, and histograms by both.

        A key is (model, region, tier). A quantity is a column of samples.
        """
        amounts: dict[Key, dict[str, FloatArray]] = defaultdict(dict)
        histograms: dict[tuple[Key, str], pl.DataFrame] = {}
        counters: list[_CounterIncrease] = []
        for metric in self.engine.metrics:
            what = metric.what
            for name in metric.names:  # former names fill the bins that the present name lacks
                if metric.kind is Kind.MEAN:
                    for key, values in self._means(metric, name).items():
                        _fill(amounts[key], what, values)
                elif metric.kind is Kind.COUNTER:
                    for counter in self._increases(name):
                        counters.append(counter)
                        _fill(amounts[counter.key], what, counter.amount)
                        # A replica is a process that counts requests itself.
                        if what == "requests" and not self.engine.front:
                            _fill(amounts[counter.key], "replicas", counter.targets)
                elif metric.kind is Kind.HISTOGRAM:
                    for key, table in self._histograms(metric, name).items():
                        histograms.setdefault((key, what), table)
                else:
                    for gauge in self._series(metric, name):
                        _fill(amounts[self._key(gauge.labels)], what, gauge.values)
        # Amounts of one bin belong together: if one counter was missed, none of them is known.
        for counter in counters:
            row = amounts[counter.key]
            for field in row.keys() & set(AMOUNTS):
                row[field] = np.where(counter.missing, MISSING, row[field])
        return amounts, histograms

    def _series(self, metric: Metric, name: str) -> list[TimeSeries]:
        """Return the series of a gauge or of the buckets of a histogram, ``[bins]`` each."""
        query = query_of(self.settings, self.engine, metric, name, self.span.bin_s)
        return self.client.range(query, self.span.ends)

    def _key(self, labels: Mapping[str, str]) -> Key:
        """Return model, region and tier of a series: from the settings, or else from its labels."""
        settings = self.settings
        model = settings.model or labels.get(settings.model_label or self.engine.model_label, "")
        region = settings.region or labels.get(settings.region_label or "", "")
        tier = settings.tier or labels.get(settings.tier_label or "", "")
        return model, region, tier

    def _increases(self, name: str) -> Iterator[_CounterIncrease]:
        """Yield the increase of the counter ``name`` for each model, region and tier."""
        matchers = label_matchers(self.settings, self.engine)
        selector = f"{name}{matchers}[{open_bin(self.span.bin_s)}]"
        last_by_labels = self._by_labels(f"last_over_time({selector})")
        if not last_by_labels:
            return
        order = sorted(last_by_labels)  # the labels of each row of the arrays below
        last = np.array([last_by_labels[labels] for labels in order])
        processes = [tuple(dict(labels).get(label, "") for label in TARGET) for labels in order]
        numbers = {process: number for number, process in enumerate(dict.fromkeys(processes))}
        targets = np.array([numbers[process] for process in processes], np.int64)
        lowest = highest = last
        # Query the extremes only if a counter was reset or a target is new.
        if wants_extremes(last, targets):
            unknown = np.full(last.shape[1], np.nan)
            low_by_labels = self._by_labels(f"min_over_time({selector})")
            lowest = np.array([low_by_labels.get(labels, unknown) for labels in order])
            high_by_labels = self._by_labels(f"max_over_time({selector})")
            highest = np.array([high_by_labels.get(labels, unknown) for labels in order])
        growth = increases(last, lowest, highest, targets=targets)
        rows_by_key: dict[Key, list[int]] = defaultdict(list)
        for row, labels in enumerate(order):
            rows_by_key[self._key(dict(labels))].append(row)
        for key, rows in rows_by_key.items():
            yield _CounterIncrease.of(key, growth, targets, rows)

    def _by_labels(self, query: str) -> dict[Labels, FloatArray]:
        """Return the values ``[bins + 1]`` of each series of a query, by its labels.

        The labels are without the metric's name. The first value is of the bin before the span.
        """
        by_labels = {}
        for series in self.client.range(query, self.span.edges):
            labels = [(name, text) for name, text in series.labels.items() if name != "__name__"]
            by_labels[tuple(sorted(labels))] = series.values
        return by_labels

    def _means(self, metric: Metric, name: str) -> dict[Key, FloatArray]:
        """Return the mean of the histogram ``name`` per bin, by (model, region, tier).

        It is the growth of the histogram's sum over that of its count. Both are read as counters,
        so a bin with one scrape has a mean. From Prometheus 3 on, ``increase`` gives nothing for
        such a bin.
        """
        sum_part, count_part = parts_of(metric, name)
        sums = {counter.key: counter.amount for counter in self._increases(sum_part)}
        means = {}
        for counter in self._increases(count_part):
            if counter.key in sums:
                mean = np.full(self.span.bins, np.nan)
                has_events = counter.amount > 0
                np.divide(sums[counter.key], counter.amount, out=mean, where=has_events)
                means[counter.key] = mean
        return means

    def _histograms(self, metric: Metric, name: str) -> dict[Key, pl.DataFrame]:
        """Return the histogram ``name`` by (model, region, tier), as tables of HISTOGRAMS.

        A row has the count of one bucket alone in one bin, if it is above 0.
        """
        cumulative_by_key: dict[Key, dict[float, FloatArray]] = defaultdict(dict)
        for series in self._series(metric, name):
            try:
                bound = float(series.labels.get("le", "nan"))
            except ValueError:
                continue
            if not math.isnan(bound):
                cumulative_by_key[self._key(series.labels)][bound] = series.values
        by_key = {}
        for key, cumulative in cumulative_by_key.items():
            fixed = dict(zip(KEYS, key, strict=True)) | {"origin": "", "what": metric.what}
            rows = _counts_of_buckets(cumulative, self.span)
            rows = rows.with_columns(pl.lit(value).alias(n) for n, value in fixed.items())
            by_key[key] = rows.select(pl.col(n).cast(kind) for n, kind in HISTOGRAMS.items())
        return by_key


def _counts_of_buckets(cumulative: Mapping[float, FloatArray], span: Span) -> pl.DataFrame:
    """Return the count of each bucket alone and above 0, from cumulative counts by upper bound."""
    bounds = np.array(sorted(cumulative))
    # A missing value counts as 0 here, but cumulative counts must not fall.
    table = np.nan_to_num(np.array([cumulative[bound] for bound in bounds.tolist()]))
    counts = np.diff(np.maximum.accumulate(table, axis=0), axis=0, prepend=0.0)
    bucket, bin_index = np.nonzero(counts > 0)
    return pl.DataFrame(
        {
            "bin_start": span.start_s + span.bin_s * bin_index,
            "least": np.append(0.0, bounds)[bucket],
            "most": bounds[bucket],
            "count": counts[bucket, bin_index],
        }
    )


def _fill(columns: dict[str, FloatArray], quantity: str, values: FloatArray) -> None:
    """Set the bins of ``quantity`` that ``columns`` does not know (NaN) to ``values``."""
    known = columns.get(quantity, values)
    columns[quantity] = np.where(np.isnan(known), values, known)


def _frame(key: Key, span: Span, columns: Mapping[str, FloatArray]) -> pl.DataFrame:
    """Return a span's ``columns`` as a table of BINS; MISSING amounts become NaN (withdrawn).

    Unknown amounts (NaN) become null. ``key`` is (model, region, tier).
    """
    bin_start = span.start_s + span.bin_s * np.arange(span.bins, dtype=np.int64)
    table: dict[str, Any] = {"bin_start": bin_start}
    for name, column in columns.items():
        values = pl.Series(column).fill_nan(None)
        table[name] = values.set(values == MISSING, np.nan)
    labels = (pl.lit(value).alias(name) for name, value in zip(KEYS, key, strict=True))
    return bins_frame(pl.DataFrame(table).with_columns(*labels))

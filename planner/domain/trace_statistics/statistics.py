"""Compute all figures of a trace, with the rank of its days and the lengths of its requests.

A kind of label is a column that splits the traffic, such as "model"; a label is one of its values.
A series is the traffic with one model, region and tier.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from forecasting.demand import DemandSeries
from forecasting.outages import Outage, find_outages, may_have_outages, outage_mask, unknown_sums
from planner.domain.trace_statistics.figures import (
    QUANTILE_LEVELS,
    UNLABELLED,
    Character,
    Characterisation,
    Day,
    Days,
    Lengths,
    LostBins,
    Sessions,
)
from planner.domain.trace_statistics.grid import Grid, stored_grid
from planner.domain.trace_statistics.periodicity import (
    burstiness,
    fine_counts,
    interarrival_cv,
    rhythm,
)
from planner.domain.trace_statistics.volumes import (
    MAX_LISTED_LABELS,
    cells,
    chart_rates,
    imbalance,
    utilities,
    volumes,
)
from planner.domain.traffic.window import DAY_S, HOUR_S
from planner.domain.traffic.window_rank import (
    MIN_OBSERVED_SHARE,
    WEEK_S,
    TimeSpan,
    busiest,
    day_words,
    span_words,
    time_spans,
    window_rank,
)
from planner.inputs.ingest.options import LABELS
from planner.inputs.ingest.report import IngestReport
from planner.inputs.ingest.store import (
    LENGTHS,
    THINK,
    absent_parts,
    label_code,
    labels_of,
    read_report,
    scan_requests,
    stored_sessions,
)
from simulation.arrays import BoolArray, FloatArray, Int32Array, IntArray

LENGTH_FIELDS = {"prompts": "input_tokens", "answers": "output_tokens"}
MAX_OUTAGES = 100  # most outages in the list; all are counted
MAX_LISTED_DAYS = 1100  # most listed days (three years); a longer trace lists its busiest
MIN_COVERED_SHARE = 0.99  # share of a day that a series must span to count as present
# Larger than any length: label x LENGTH_LIMIT + length packs both into one number.
LENGTH_LIMIT = 1 << 31


def characterise(store: Path | str) -> Characterisation:
    """Return the figures of the trace in the folder ``store``, with data for charts and rankings.

    A file of counts per bin has fewer figures than a file of requests.
    """
    store = Path(store)
    report = read_report(store)
    by_request = report.kind == "requests"
    grid = stored_grid(store, report)
    summed = grid.sum_over_series(grid.unit)
    lost = unknown_sums(grid.amounts[grid.unit], grid.bin_s)
    known_amounts = np.where(lost, np.nan, summed)
    kinds = tuple(grid.labels)
    total, *by_label = volumes(grid, lost, utilities(store, kinds) if by_request else {})
    # Counts per bin cannot show bursts shorter than a bin.
    fine, fine_s = known_amounts, grid.bin_s
    if by_request:
        fine, fine_s = fine_counts(store, report.end_s - report.start_s)
    imbalances = (imbalance(grid, kind) for kind in kinds)
    outages = _all_lost_bins(grid, find_outages(summed, grid.bin_s))
    character = Character(
        trace=report.trace,
        kind=report.kind,
        clock=report.clock,
        unit=grid.unit,
        start_s=report.start_s,
        end_s=report.end_s,
        bin_s=grid.bin_s,
        series=len(grid.names),
        total=total,
        volumes=tuple(by_label),
        cells=tuple(cells(grid)),
        imbalance=tuple(row for row in imbalances if row is not None),
        levels=QUANTILE_LEVELS,
        lengths=tuple(request_lengths(store, kinds) if by_request else mean_lengths(grid)),
        rhythm=rhythm(known_amounts, grid.start_s, grid.bin_s, report.clock),
        interarrival_cv=interarrival_cv(store) if by_request else None,
        burstiness=tuple(burstiness(fine, fine_s)),
        days=days(grid, lost, report.clock),
        gaps=int(np.isnan(summed).sum()),
        outages=tuple(outages[:MAX_OUTAGES]),
        outages_found=len(outages),
        notes=_notes(report, grid, sampled=(store / LENGTHS).is_file()),
        sessions=sessions_of(store) if by_request else None,
    )
    totals = tuple(grid.total(field) for field in grid.amounts)
    return Characterisation(character, chart_rates(grid, lost), totals)


def _all_lost_bins(grid: Grid, total_outages: tuple[Outage, ...]) -> list[LostBins]:
    """Return the outages of the whole trace by time, then those of single series.

    An outage of a series counts only outside those of the whole trace. Those with the most missing
    requests come first.
    """
    in_total = outage_mask(total_outages, grid.bins)
    of_series: list[LostBins] = []
    if len(grid.names) > 1:
        amounts = np.where(in_total | ~grid.present, np.nan, grid.amounts[grid.unit])
        for row in np.flatnonzero(may_have_outages(amounts)):
            outages = find_outages(amounts[row], grid.bin_s)
            of_series += [_lost_bins_of(grid, grid.names[row], outage) for outage in outages]
    of_series.sort(key=lambda outage: -outage.missing)
    return [_lost_bins_of(grid, "all", outage) for outage in total_outages] + of_series


def _lost_bins_of(grid: Grid, series: str, outage: Outage) -> LostBins:
    """Return an outage of ``series`` (a name, or "all") with its times and its missing amount."""
    start_s = grid.start_s + outage.first * grid.bin_s
    end_s = start_s + outage.bins * grid.bin_s
    missing = outage.expected * outage.bins
    return LostBins(series, start_s, end_s, outage.bins, missing, outage.after)


def _notes(report: IngestReport, grid: Grid, *, sampled: bool) -> tuple[str, ...]:
    """Return sentences on what the file lacks, and on how its data were changed.

    ``sampled``: a sample of request lengths is stored with the counts.
    """
    notes = []
    for by, names in grid.labels.items():
        count = len(set(names))
        if count > MAX_LISTED_LABELS:
            plural = by if by == "series" else f"{by}s"
            notes.append(f"{count:,} {plural}; the {MAX_LISTED_LABELS} largest are shown.")
    if report.bin_s is not None and grid.bin_s > report.bin_s:
        notes.append(
            f"With {len(grid.names):,} series, bins of {report.bin_s:g} s are shown as "
            f"{grid.bin_s:g} s."
        )
    if report.cached_tokens and report.input_tokens:
        share = report.cached_tokens / report.input_tokens
        notes.append(f"{share:.1%} of the input tokens came from a prefix cache.")
    if report.reasoning_tokens and report.output_tokens:
        share = report.reasoning_tokens / report.output_tokens
        notes.append(f"{share:.1%} of the output tokens are reasoning.")
    if grid.unit != "requests":
        unit = grid.unit.replace("_", " ")
        notes.append(f"The file has no request counts. Rates and ranks are in {unit}.")
    if report.kind == "demand":
        notes += _notes_on_counts(grid, sampled)
    return tuple(notes)


def _notes_on_counts(grid: Grid, sampled: bool) -> Iterator[str]:
    """Yield sentences on what a file of counts per bin lacks."""
    missing = [what for what, field in LENGTH_FIELDS.items() if field not in grid.amounts]
    if len(missing) == len(LENGTH_FIELDS):
        yield "The file has no lengths. Plans assume them."
    else:
        if sampled:
            yield "Lengths are means per bin. Plans draw them from a sample of requests."
        else:
            yield "The file has only mean lengths per bin. Plans assume their distribution."
        yield from (f"The file has no lengths of {what}. Plans assume them." for what in missing)
    if not grid.present.all():
        yield absent_parts(int((~grid.present).any(axis=1).sum()), len(grid.names))
    if grid.bin_s > HOUR_S:
        yield "Bins are wider than an hour, so the daily pattern is unknown."


def sessions_of(store: Path) -> Sessions | None:
    """Return the figures of sessions with at least two requests; None if there are none."""
    _, scan = scan_requests(store)
    session = stored_sessions(scan)
    if session is None:
        return None
    think_known = THINK in scan.collect_schema().names()
    # One row per request, session by session.
    turns = _turns(scan, session, pl.col(THINK) if think_known else pl.lit(0.0).alias(THINK))
    counts = turns.group_by("session").len()["len"]
    is_later_turn = turns["session"].diff() == 0
    gaps = turns["arrival_s"].diff().filter(is_later_turn)
    thinks = turns[THINK].filter(is_later_turn)
    growth = turns["input_tokens"].cast(pl.Int64).diff().filter(is_later_turn)
    return Sessions(
        sessions=counts.len(),
        share=turns.height / len(session),
        turns_mean=turns.height / counts.len(),
        turns_p50=_quantile(counts, 0.5),
        turns_p95=_quantile(counts, 0.95),
        turns_most=int(np.max(counts.to_numpy())),
        gap_s_p50=_quantile(gaps, 0.5),
        gap_s_p95=_quantile(gaps, 0.95),
        think_s_p50=_quantile(thinks, 0.5) if think_known else None,
        think_s_p95=_quantile(thinks, 0.95) if think_known else None,
        growing=float((growth >= 0).to_numpy().mean()),
        growth_p50=_quantile(growth, 0.5),
    )


def _turns(scan: pl.LazyFrame, session: Int32Array, think: pl.Expr) -> pl.DataFrame:
    """Return the requests that are in a session, by session, each in order of arrival."""
    columns = scan.select("arrival_s", "input_tokens", think).collect()
    order = np.argsort(session, kind="stable")
    order = order[session[order] >= 0]
    return columns.with_columns(session=session).select(pl.all().gather(order))


def _quantile(values: pl.Series, level: float) -> float:
    """Return the value nearest to the quantile ``level``; 0 without values."""
    return float(values.quantile(level, "nearest") or 0.0)


def days(grid: Grid, lost: BoolArray, clock: str) -> Days:
    """Return the calendar days of the trace in order, each with its rank by demand.

    If there are more than ``MAX_LISTED_DAYS`` days, only the busiest are listed. A day with too
    many unknown bins has no rank. ``lost [bins]`` marks bins that are not real demand. There are no
    days if bins are wider than a day.
    """
    if grid.bin_s > DAY_S:
        return Days((), 0, None, None, ())
    total = grid.total(grid.unit)
    total = replace(total, values=np.where(lost, np.nan, total.values))
    listed = _calendar_days(grid, total, clock)
    week = busiest(total, WEEK_S)
    sentences = list(_day_sentences(listed, total, week, len(grid.names), clock))
    ranked = sum(day.rank is not None for day in listed)
    if len(listed) > MAX_LISTED_DAYS:
        sentences.append(f"{len(listed):,} days; the {MAX_LISTED_DAYS:,} busiest are listed.")
        busiest_first = sorted(listed, key=lambda day: -(day.of_busiest or 0.0))
        listed = sorted(busiest_first[:MAX_LISTED_DAYS], key=lambda day: day.start_s)
    return Days(tuple(listed), ranked, busiest(total, DAY_S), week, tuple(sentences))


def _calendar_days(grid: Grid, total: DemandSeries, clock: str) -> list[Day]:
    """Return all calendar days of the trace in order; ``total`` is its demand over all series."""
    # 1e-9: a bin that starts a rounding error before midnight belongs to the next day.
    day_of_bin = np.floor(grid.edges_s / DAY_S + 1e-9).astype(np.int64)
    first = int(day_of_bin[0])
    day_of_bin -= first
    known = ~np.isnan(total.values)
    observed_share = _sums_per_day(known, day_of_bin) * grid.bin_s / DAY_S
    sums = {field: _sums_per_day(grid.sum_over_series(field), day_of_bin) for field in grid.amounts}
    covering = _covering_series(grid, day_of_bin)
    # Only days with enough known bins are compared.
    amount_by_start = {day.start_s: day.amount for day in time_spans(total, DAY_S)}
    amounts = np.array(list(amount_by_start.values()))
    all_days = []
    for day, share in enumerate(observed_share.tolist()):
        start_s = (first + day) * DAY_S
        rank, of_busiest = _rank_of_day(amount_by_start.get(start_s), amounts)
        row = Day(
            start_s=start_s,
            name=day_words(start_s, clock),
            requests=_sum_of_day(sums, "requests", day),
            input_tokens=_sum_of_day(sums, "input_tokens", day),
            output_tokens=_sum_of_day(sums, "output_tokens", day),
            seen=min(1.0, share),
            series=int(covering[day]),
            rank=rank,
            of_busiest=of_busiest,
        )
        all_days.append(row)
    return all_days


def _sums_per_day(values: FloatArray | BoolArray, day_of_bin: IntArray) -> FloatArray:
    """Return the sum of ``values [bins]`` over each day; unknown bins count as 0."""
    return np.bincount(day_of_bin, np.nan_to_num(values)).astype(np.float64)


def _covering_series(grid: Grid, day_of_bin: IntArray) -> IntArray:
    """Return the number of series that cover most of each day, ``[days]``."""
    first_bins = np.searchsorted(day_of_bin, np.arange(day_of_bin[-1] + 1))  # of each day
    present_bins = np.add.reduceat(grid.present, first_bins, axis=1, dtype=np.int64)
    present_share = present_bins * grid.bin_s / DAY_S  # [series, day]
    return np.asarray((present_share >= MIN_COVERED_SHARE).sum(axis=0))


def _rank_of_day(amount: float | None, amounts: FloatArray) -> tuple[int | None, float | None]:
    """Return (rank of a day, its share of the busiest day's demand) among ``amounts``.

    ``amount`` is that of the day; None: it is not ranked.
    """
    if amount is None:
        return None, None
    most = float(amounts.max())
    return 1 + int((amounts > amount).sum()), amount / most if most else None


def _day_sentences(
    all_days: list[Day], total: DemandSeries, busiest_week: TimeSpan | None, series: int, clock: str
) -> Iterator[str]:
    """Yield sentences on the last day, the busiest week, and days with missing data.

    ``series`` is the number of series of the trace, whose demand is ``total``.
    """
    ranked = [day for day in all_days if day.rank is not None]
    if not ranked:
        yield f"No day has {MIN_OBSERVED_SHARE:.0%} or more of its data, so days are not ranked."
        return
    last = ranked[-1].start_s
    yield f"Last whole day: {window_rank(total, last, last + DAY_S, clock).sentence}"
    if busiest_week is not None and len(ranked) > 7:
        yield f"Busiest seven days: {span_words(busiest_week.start_s, busiest_week.end_s, clock)}."
    unranked = len(all_days) - len(ranked)
    if unranked:
        yield (
            f"{unranked:,} partial {'day is' if unranked == 1 else 'days are'} not ranked, with "
            f"less than {MIN_OBSERVED_SHARE:.0%} of the data."
        )
    lacking = sum(day.series < series for day in ranked)
    if lacking:
        yield (
            f"{lacking:,} of {len(ranked):,} days lack some of the {series:,} series. Their totals "
            "are too low."
        )


def _sum_of_day(sums: dict[str, np.ndarray], field: str, day: int) -> float | None:
    """Return a day's sum of ``field``; None if it is not known."""
    return float(sums[field][day]) if field in sums else None


def request_lengths(store: Path, by: tuple[str, ...]) -> list[Lengths]:
    """Return the lengths of prompts and answers: of all requests, and by label of each kind.

    ``by`` are the kinds of labels. Only the ``MAX_LISTED_LABELS`` labels with most requests count.
    """
    report, scan = scan_requests(store)
    label_codes = label_code(report)  # a number for each combination of model, region and tier
    lengths = []
    for field in LENGTH_FIELDS.values():
        # Count pairs of label and length, so that memory does not grow with the requests.
        packed = (label_codes * LENGTH_LIMIT + pl.col(field)).alias("packed")
        counts = scan.select(packed).group_by("packed").len("n").collect(engine="streaming")
        code, tokens = np.divmod(counts["packed"].to_numpy(), LENGTH_LIMIT)
        requests = counts["n"].to_numpy().astype(np.int64)
        distinct_codes, series = np.unique(code, return_inverse=True)
        labels = labels_of(report, distinct_codes)  # (model, region, tier) of each series
        lengths += _by_label(field, "all", np.full(len(labels), "all"), series, tokens, requests)
        for kind in by:
            of_kind = [row[LABELS.index(kind)] or UNLABELLED for row in labels]
            lengths += _by_label(field, kind, np.array(of_kind), series, tokens, requests)
    return lengths


def _by_label(
    field: str,
    by: str,
    label_of_series: np.ndarray,
    series: IntArray,
    tokens: IntArray,
    count: IntArray,
) -> list[Lengths]:
    """Return the lengths of the labels with the most requests, at most ``MAX_LISTED_LABELS``.

    ``count[i]`` requests of series number ``series[i]`` have ``tokens[i]`` tokens each.
    """
    names, label_index_of_series = np.unique(label_of_series, return_inverse=True)
    label_of_row = label_index_of_series[series]
    largest_first = np.argsort(-np.bincount(label_of_row, count), kind="stable")
    lengths = []
    for label in largest_first[:MAX_LISTED_LABELS].tolist():
        rows = label_of_row == label
        distinct_tokens, index = np.unique(tokens[rows], return_inverse=True)
        requests = np.bincount(index, count[rows]).astype(np.float64)
        name, distinct_tokens = str(names[label]), distinct_tokens.astype(float)
        lengths.append(length_distribution(field, by, name, distinct_tokens, requests))
    return lengths


def length_distribution(
    field: str, by: str, label: str, tokens: FloatArray, count: FloatArray
) -> Lengths:
    """Return the distribution of lengths: ``count[i]`` requests have ``tokens[i]`` tokens each.

    ``tokens`` are sorted. A quantile is the smallest length that at least this share of requests
    does not exceed (inverted CDF).
    """
    total = float(count.sum())
    mean = float(np.average(tokens, weights=count))
    variance = float(np.average((tokens - mean) ** 2, weights=count))
    needed = np.array([0.5, 0.95, 0.99, *QUANTILE_LEVELS]) * total  # requests
    needed = np.ceil(needed - 1e-9).clip(1)  # 1e-9: against rounding errors
    # The first length up to which there are enough requests.
    index = np.searchsorted(np.cumsum(count), needed)
    p50, p95, p99, *quantiles = tokens[index].tolist()
    return Lengths(
        field, by, label, total, mean, cv=variance**0.5 / mean if mean else None,
        p50=p50, p95=p95, p99=p99, most=float(tokens[-1]), quantiles=tuple(quantiles),
    )  # fmt: skip


def mean_lengths(grid: Grid) -> list[Lengths]:
    """Return the mean lengths of prompts and answers, from counts of requests and tokens per bin.

    They are of all requests, and of each label.
    """
    if "requests" not in grid.amounts:
        return []
    means = []
    for field in LENGTH_FIELDS.values():
        if field not in grid.amounts:
            continue
        for by, label, rows in grid.groups(MAX_LISTED_LABELS):
            mean = _mean(grid, field, by, label, rows)
            if mean is not None:
                means.append(mean)
    return means


def _mean(grid: Grid, field: str, by: str, label: str, rows: np.ndarray) -> Lengths | None:
    """Return the mean length of the series ``rows`` together, in bins with both counts.

    None if it is not known.
    """
    requests, tokens = grid.amounts["requests"][rows], grid.amounts[field][rows]
    both_known = ~np.isnan(requests) & ~np.isnan(tokens)
    total = float(requests[both_known].sum())
    if not total:
        return None
    mean = float(tokens[both_known].sum()) / total
    return Lengths(field, by, label, total, mean)

"""Compute all figures of a trace."""

from pathlib import Path

import numpy as np
import polars as pl

from forecasting.outages import Outage, find_outages, may_have_outages, outage_mask, unknown_sums
from planner.domain.trace_statistics.days import days
from planner.domain.trace_statistics.figures import (
    LEVELS,
    Character,
    Characterisation,
    LostBins,
    Sessions,
)
from planner.domain.trace_statistics.grid import Grid, stored_grid
from planner.domain.trace_statistics.lengths import mean_lengths, request_lengths
from planner.domain.trace_statistics.periodicity import (
    burstiness,
    fine_counts,
    interarrival_cv,
    rhythm,
)
from planner.domain.trace_statistics.volumes import (
    LISTED,
    cells,
    chart_rates,
    imbalance,
    utilities,
    volumes,
)
from planner.domain.traffic.window import HOUR_S
from planner.inputs.ingest.report import IngestReport
from planner.inputs.ingest.store import (
    LENGTHS,
    THINK,
    absent_parts,
    read_report,
    scan_requests,
    stored_sessions,
)

_LENGTHS = {"prompts": "input_tokens", "answers": "output_tokens"}
MAX_OUTAGES = 100  # most outages in the list; all are counted


def characterise(store: Path | str) -> Characterisation:
    """Return the figures of a stored trace, with the data for charts and rankings.

    ``store`` is its folder. A file of counts per bin has fewer figures than a file of requests.
    """
    store = Path(store)
    report = read_report(store)
    by_request = report.kind == "requests"
    grid = stored_grid(store, report)
    summed = grid.summed(grid.unit)
    lost = unknown_sums(grid.amounts[grid.unit], grid.bin_s)
    known_amounts = np.where(lost, np.nan, summed)
    kinds = tuple(grid.labels)
    total, *by_label = volumes(grid, lost, utilities(store, kinds) if by_request else {})
    # Counts per bin cannot show bursts shorter than a bin.
    fine, fine_s = known_amounts, grid.bin_s
    if by_request:
        fine, fine_s = fine_counts(store, report.end_s - report.start_s)
    imbalances = (imbalance(grid, kind) for kind in kinds)
    outages = _lost_bins(grid, find_outages(summed, grid.bin_s))
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
        levels=LEVELS,
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


def _lost_bins(grid: Grid, total_outages: tuple[Outage, ...]) -> list[LostBins]:
    """Return the outages of the total by time, then those of single series.

    An outage of a series counts only outside those of the total. Of series, the outages with the
    most missing requests come first.
    """
    in_total = outage_mask(total_outages, grid.bins)
    single: list[LostBins] = []
    if len(grid.names) > 1:
        amounts = np.where(in_total | ~grid.present, np.nan, grid.amounts[grid.unit])
        for row in np.flatnonzero(may_have_outages(amounts)):
            outages = find_outages(amounts[row], grid.bin_s)
            single += [_lost_bins_of(grid, grid.names[row], outage) for outage in outages]
    single.sort(key=lambda outage: -outage.missing)
    return [_lost_bins_of(grid, "all", outage) for outage in total_outages] + single


def _lost_bins_of(grid: Grid, series: str, outage: Outage) -> LostBins:
    """Return an outage of ``series`` with its times and its missing amount."""
    start_s = grid.start_s + outage.first * grid.bin_s
    end_s = start_s + outage.bins * grid.bin_s
    missing = outage.expected * outage.bins
    return LostBins(series, start_s, end_s, outage.bins, missing, outage.after)


def _notes(report: IngestReport, grid: Grid, *, sampled: bool) -> tuple[str, ...]:
    """Return sentences on what the file lacks, and on how its data were changed.

    ``sampled``: a sample of request lengths is stored with the counts.
    """
    notes = [
        f"{count:,} {by if by == 'series' else f'{by}s'}; the {LISTED} largest are shown."
        for by, names in grid.labels.items()
        if (count := len(set(names))) > LISTED
    ]
    if report.bin_s is not None and grid.bin_s > report.bin_s:
        notes.append(
            f"With {len(grid.names):,} series, bins of {report.bin_s:g} s are shown as "
            f"{grid.bin_s:g} s."
        )
    for part, whole, words in (
        (report.cached_tokens, report.input_tokens, "input tokens came from a prefix cache"),
        (report.reasoning_tokens, report.output_tokens, "output tokens are reasoning"),
    ):
        if part and whole:
            notes.append(f"{part / whole:.1%} of the {words}.")
    if grid.unit != "requests":
        notes.append(
            f"The file has no request counts. Rates and ranks are in {grid.unit.replace('_', ' ')}."
        )
    if report.kind == "demand":
        missing = [what for what, field in _LENGTHS.items() if field not in grid.amounts]
        if len(missing) < len(_LENGTHS):
            notes.append(
                "Lengths are means per bin. Plans draw them from a sample of requests."
                if sampled
                else "Lengths are means per bin. Plans assume their spread."
            )
            notes += [f"The file has no lengths of {what}. Plans assume them." for what in missing]
        else:
            notes.append("The file has no lengths. Plans assume them.")
        if not grid.present.all():
            partial = int((~grid.present).any(axis=1).sum())
            notes.append(absent_parts(partial, len(grid.names)))
        if grid.bin_s > HOUR_S:
            notes.append("Bins are wider than an hour, so the daily pattern is unknown.")
    return tuple(notes)


def sessions_of(store: Path) -> Sessions | None:
    """Return the figures of sessions with at least two requests; None if there are none."""
    _, scan = scan_requests(store)
    session = stored_sessions(scan)
    if session is None:
        return None
    think_known = THINK in scan.collect_schema().names()
    think = pl.col(THINK) if think_known else pl.lit(0.0).alias(THINK)
    columns = scan.select("arrival_s", "input_tokens", think).collect()
    order = np.argsort(session, kind="stable")  # by session, each in order of arrival
    order = order[session[order] >= 0]
    turns = columns.with_columns(session=session).select(pl.all().gather(order))
    counts = turns.group_by("session").len()["len"]
    same = turns["session"].diff() == 0
    gaps = turns["arrival_s"].diff().filter(same)
    thinks = turns[THINK].filter(same)
    growth = turns["input_tokens"].cast(pl.Int64).diff().filter(same)

    def quantile(values: pl.Series, level: float) -> float:
        """Return the nearest value at a level from 0 to 1; 0 without values."""
        return float(values.quantile(level, "nearest") or 0.0)

    return Sessions(
        sessions=counts.len(),
        share=turns.height / len(session),
        turns_mean=turns.height / counts.len(),
        turns_p50=quantile(counts, 0.5),
        turns_p95=quantile(counts, 0.95),
        turns_most=int(np.max(counts.to_numpy())),
        gap_s_p50=quantile(gaps, 0.5),
        gap_s_p95=quantile(gaps, 0.95),
        think_s_p50=quantile(thinks, 0.5) if think_known else None,
        think_s_p95=quantile(thinks, 0.95) if think_known else None,
        growing=float((growth >= 0).to_numpy().mean()),
        growth_p50=quantile(growth, 0.5),
    )

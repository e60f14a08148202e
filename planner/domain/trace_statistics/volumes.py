"""Compute the traffic of each model, region and tier, and its imbalance."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path

import numpy as np
import polars as pl

from planner.domain.trace_statistics.figures import UNLABELLED, Cell, Imbalance, Volume
from planner.domain.trace_statistics.grid import Grid
from planner.domain.trace_statistics.periodicity import day_and_week
from planner.domain.traffic.window import DAY_S
from planner.inputs.ingest.options import LABELS
from planner.inputs.ingest.store import scan_requests
from simulation.arrays import BoolArray, FloatArray, IntArray

MAX_CELLS = 200  # most combinations of model, region and tier
MAX_LISTED_LABELS = 100  # most labels of a kind: each takes longer to compute than to read
MAX_CHART_LINES = 6  # most lines in a chart; smaller labels are summed
MAX_CHART_INTERVALS = 480  # most intervals in a chart: about its pixels
OTHERS = "others"
Utility = Mapping[tuple[str, str], tuple[float, float]]  # by (kind, label): (sum, requests)


def volumes(grid: Grid, lost: BoolArray, utility: Utility) -> list[Volume]:
    """Return the traffic of the whole trace, then of the largest labels of each kind.

    Sums are those of the file. Rates leave out the bins that are ``lost [bins]``: not real demand.
    ``utility`` has (sum of utility, number of requests with one) by (kind, label).
    """
    series_sums = {field: np.nansum(values, axis=1) for field, values in grid.amounts.items()}
    return [
        _volume_of_label(grid, (by, label), rows, lost, utility, series_sums)
        for by, label, rows in grid.groups(MAX_LISTED_LABELS)
    ]


def _volume_of_label(
    grid: Grid,
    label: tuple[str, str],
    rows: IntArray,
    lost: BoolArray,
    utility: Utility,
    series_sums: Mapping[str, FloatArray],
) -> Volume:
    """Return the traffic of the series ``rows`` together, as that of the ``label`` (kind, name).

    ``series_sums`` has the sum of each series by field. ``lost`` marks bins that are not real
    demand.
    """
    sums = {field: float(values[rows].sum()) for field, values in series_sums.items()}
    trace_sum = float(series_sums[grid.unit].sum())
    rates = np.where(lost, np.nan, grid.sum_over_series(grid.unit, rows)) / grid.bin_s
    known = rates[~np.isnan(rates)]
    # Outside its own bins a series counts as zero, so that the means of labels add up to the total.
    absent = grid.present.any(axis=0) & ~grid.present[rows].any(axis=0) & ~lost
    mean = float(known.sum()) / (len(known) + int(absent.sum())) if len(known) else 0.0
    peak = float(known.max(initial=0.0))
    _, day, week = day_and_week(rates, grid.bin_s)
    utility_sum, requests = utility.get(label, (None, 0.0))
    utility_mean = utility_sum / requests if utility_sum is not None and requests else None
    kind, name = label
    return Volume(
        by=kind,
        label=name,
        requests=sums.get("requests"),
        input_tokens=sums.get("input_tokens"),
        output_tokens=sums.get("output_tokens"),
        share=sums[grid.unit] / trace_sum if trace_sum else None,
        mean=mean,
        peak=peak,
        peak_to_mean=peak / mean if mean else None,
        autocorrelation_day=day,
        autocorrelation_week=week,
        utility=utility_sum,
        utility_per_request=utility_mean,
    )


def cells(grid: Grid) -> list[Cell]:
    """Return the traffic of each combination of model, region and tier, the largest first.

    [] if the trace has fewer than two kinds of labels.
    """
    if sum(kind in grid.labels for kind in LABELS) < 2:
        return []
    unknown = (UNLABELLED,) * len(grid.names)
    models, regions, tiers = [grid.labels.get(kind, unknown) for kind in LABELS]
    amounts = np.nansum(grid.amounts[grid.unit], axis=1).tolist()
    by_cell: dict[tuple[str, str, str], float] = defaultdict(float)
    for model, region, tier, amount in zip(models, regions, tiers, amounts, strict=True):
        by_cell[model, region, tier] += amount
    total = sum(amounts)
    largest = sorted(by_cell, key=lambda cell: -by_cell[cell])[:MAX_CELLS]
    return [
        Cell(*cell, amount=by_cell[cell], share=by_cell[cell] / total if total else 0.0)
        for cell in largest
    ]


def imbalance(grid: Grid, by: str) -> Imbalance | None:
    """Return the imbalance between the labels of the kind ``by``; None: fewer than two labels."""
    names, codes = grid.codes(by)
    amounts = np.bincount(codes, np.nansum(grid.amounts[grid.unit], axis=1), len(names))
    if len(names) < 2 or not amounts.any():
        return None
    shares = amounts / amounts.sum()
    largest, smallest = int(shares.argmax()), int(shares.argmin())
    return Imbalance(
        by=by,
        labels=len(names),
        most=names[largest],
        most_share=float(shares[largest]),
        least=names[smallest],
        least_share=float(shares[smallest]),
        effective=float(1 / (shares**2).sum()),
    )


def utilities(store: Path, by: Sequence[str]) -> Utility:
    """Return (sum of utility, number of requests with a utility) by (kind, label).

    Empty if the file has no utility. ``by`` are the kinds of labels.
    """
    _, scan = scan_requests(store)
    if "utility" not in scan.collect_schema().names():
        return {}
    utility = pl.col("utility")
    sums: dict[tuple[str, str], tuple[float, float]] = {}
    for kind in ("all", *by):
        label = pl.lit("all") if kind == "all" else pl.col(kind).fill_null(UNLABELLED)
        grouped = scan.group_by(label.alias("label"))
        table = grouped.agg(utility.sum(), utility.count().alias("n")).collect(engine="streaming")
        for name, total, count in table.iter_rows():
            sums[kind, str(name)] = float(total), float(count)
    return sums


def chart_rates(grid: Grid, lost: BoolArray) -> pl.DataFrame:
    """Return a table of amounts over time: of the total, the largest labels, and the others.

    There is a row per label and interval: by (kind), label, place (rank by amount), start_s,
    seconds, and the amounts. Bins are merged into as many intervals as a chart can show. Bins that
    are ``lost [bins]`` are gaps.
    """
    starts = np.arange(0, grid.bins, _bins_per_interval(grid.bins, grid.bin_s))
    width = np.diff(np.append(starts, grid.bins))
    intervals = {"start_s": grid.start_s + grid.bin_s * starts, "seconds": grid.bin_s * width}
    frames = []
    for by in ("all", *grid.labels):
        for rank, (label, rows) in enumerate(_chart_lines(grid, by)):
            amounts = {}
            for field in grid.amounts:
                values = np.where(lost, np.nan, grid.sum_over_series(field, rows))
                amounts[field] = pl.Series(_interval_sums(values, starts, width)).fill_nan(None)
            names = pl.lit(by).alias("by"), pl.lit(label).alias("label")
            place = pl.lit(rank, pl.Int64).alias("place")
            frames.append(pl.DataFrame(intervals | amounts).select(*names, place, pl.all()))
    return pl.concat(frames)


def _interval_sums(values: FloatArray, starts: IntArray, width: IntArray) -> FloatArray:
    """Return the sums over intervals of bins, scaled up from the known bins to all.

    NaN if fewer than half of the bins are known. ``starts`` and ``width`` are the first bin and the
    number of bins of each interval.
    """
    known_bins = np.add.reduceat((~np.isnan(values)).astype(float), starts)
    total = np.add.reduceat(np.nan_to_num(values), starts)
    scaled = total * width / np.maximum(known_bins, 1)
    return np.where(known_bins * 2 >= width, scaled, np.nan)


def _bins_per_interval(bins: int, bin_s: float) -> int:
    """Return how many bins to merge, so that a chart has at most ``MAX_CHART_INTERVALS``."""
    fewest = max(1, ceil(bins / MAX_CHART_INTERVALS))
    # A day should have whole intervals, or an interval whole days: other widths would draw waves
    # that are not in the data.
    bins_per_day = round(DAY_S / bin_s)
    if fewest == 1 or abs(bins_per_day * bin_s - DAY_S) > 1e-6 * DAY_S:
        return fewest
    if fewest > bins_per_day:
        return ceil(fewest / bins_per_day) * bins_per_day
    return next(count for count in range(fewest, bins_per_day + 1) if bins_per_day % count == 0)


def _chart_lines(grid: Grid, by: str) -> list[tuple[str, np.ndarray]]:
    """Return the lines of a chart of the labels of the kind ``by``: (label, indices of its series).

    If there are more than ``MAX_CHART_LINES`` labels, the smallest share the last line.
    """
    if by == "all":
        return [("all", np.arange(len(grid.names)))]
    names, codes = grid.codes(by)  # largest labels first
    shown = (
        len(names) if len(names) <= MAX_CHART_LINES else MAX_CHART_LINES - 1
    )  # labels with a line of their own
    lines = [(name, np.flatnonzero(codes == code)) for code, name in enumerate(names[:shown])]
    if shown < len(names):
        lines.append((f"{len(names) - shown} {OTHERS}", np.flatnonzero(codes >= shown)))
    return lines

"""Compute the distribution of request lengths exactly, by counting every length."""

from pathlib import Path

import numpy as np
import polars as pl

from planner.domain.trace_statistics.figures import LEVELS, UNSAID, Lengths
from planner.domain.trace_statistics.grid import Grid
from planner.domain.trace_statistics.volumes import LISTED
from planner.inputs.ingest.options import LABELS
from planner.inputs.ingest.store import label_code, labels_of, scan_requests
from simulation.arrays import FloatArray, IntArray

ROOM = 1 << 31  # larger than any length, so that a label and a length pack into one number
FIELDS = ("input_tokens", "output_tokens")


def request_lengths(store: Path, by: tuple[str, ...]) -> list[Lengths]:
    """Return the lengths of all requests, and of the largest labels of each kind in ``by``."""
    report, scan = scan_requests(store)
    coded = label_code(report).alias("code")
    lengths = []
    for field in FIELDS:
        # Count pairs of label and length, so that memory does not grow with the requests.
        packed = (coded * ROOM + pl.col(field)).alias("packed")
        counts = scan.select(packed).group_by("packed").len("n").collect(engine="streaming")
        code, tokens = (counts["packed"] // ROOM).to_numpy(), (counts["packed"] % ROOM).to_numpy()
        requests = counts["n"].to_numpy().astype(np.int64)
        series, codes = np.unique(code, return_inverse=True)
        names = labels_of(report, series)
        lengths += _by_label(field, "all", np.full(len(names), "all"), codes, tokens, requests)
        for kind in by:
            of_series = [each[LABELS.index(kind)] or UNSAID for each in names]
            lengths += _by_label(field, kind, np.array(of_series), codes, tokens, requests)
    return lengths


def _by_label(
    field: str, by: str, of_series: np.ndarray, codes: IntArray, tokens: IntArray, count: IntArray
) -> list[Lengths]:
    """Return the lengths of the LISTED labels with the most requests, the largest first.

    ``of_series`` has the label of each series. ``count[i]`` requests of series ``codes[i]`` have
    ``tokens[i]`` each.
    """
    labels, label = np.unique(of_series, return_inverse=True)
    # Pairs of label and length, sorted by both, with their number of requests.
    packed, packed_index = np.unique(label[codes] * ROOM + tokens, return_inverse=True)
    weight = np.bincount(packed_index, count).astype(np.float64)
    label_of = packed // ROOM
    values = (packed % ROOM).astype(np.float64)
    first = np.searchsorted(label_of, np.arange(len(labels) + 1))
    requests = np.add.reduceat(weight, first[:-1])
    lengths = []
    for i in np.argsort(-requests, kind="stable")[:LISTED]:
        rows = slice(first[i], first[i + 1])
        name = str(labels[i])
        lengths.append(length_distribution(field, by, name, values[rows], weight[rows]))
    return lengths


def length_distribution(
    field: str, by: str, label: str, tokens: FloatArray, count: FloatArray
) -> Lengths:
    """Return the distribution of ``count[i]`` requests with ``tokens[i]`` each, sorted by tokens.

    A quantile is the smallest length that at least this share of requests does not exceed
    (inverted CDF).
    """
    total = float(count.sum())
    mean = float((tokens * count).sum()) / total
    variance = float((count * (tokens - mean) ** 2).sum()) / total
    requests_up_to = np.cumsum(count)

    def quantiles(levels: FloatArray) -> list[float]:
        """Return the quantiles of the given levels, in tokens."""
        needed = np.ceil(levels * total - 1e-9).clip(1)
        index = np.searchsorted(requests_up_to, needed, side="left")
        return [float(value) for value in tokens[index]]

    p50, p95, p99 = quantiles(np.array([0.5, 0.95, 0.99]))
    return Lengths(
        field, by, label, total, mean, variance**0.5 / mean if mean else None,
        p50, p95, p99, float(tokens[-1]), tuple(quantiles(np.array(LEVELS))),
    )  # fmt: skip


def mean_lengths(grid: Grid) -> list[Lengths]:
    """Return mean lengths from counts per bin, over the bins with both requests and tokens."""
    if "requests" not in grid.amounts:
        return []
    return [
        lengths
        for field in FIELDS
        if field in grid.amounts
        for by, label, rows in grid.groups(LISTED)
        if (lengths := _mean(grid, field, by, label, rows)) is not None
    ]


def _mean(grid: Grid, field: str, by: str, label: str, rows: np.ndarray) -> Lengths | None:
    """Return the mean length of the series ``rows`` together; None if it is not known."""
    requests, tokens = grid.amounts["requests"][rows], grid.amounts[field][rows]
    both = ~np.isnan(requests) & ~np.isnan(tokens)
    total = float(requests[both].sum())
    if not total:
        return None
    mean = float(tokens[both].sum()) / total
    return Lengths(field, by, label, total, mean, None, None, None, None, None, ())

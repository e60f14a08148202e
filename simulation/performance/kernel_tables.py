"""Tables of measured kernels of one GPU type, and their interpolation.

All tables are made monotone and then interpolated in logarithms (a power law between neighbours).
Beyond the last point time grows in proportion to the size, and ``inside`` is False.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy

from simulation.arrays import BoolArray, FloatArray
from simulation.performance.monotone import Line, medians, monotone, monotone_line
from simulation.performance.work import (
    Attention,
    Collective,
    Elementwise,
    Experts,
    Gemm,
    Iteration,
    Operator,
)

# A product up to this many times wider than any measured one still counts as measured, for example
# an output head of 128,000 words. It equals several measured products in parallel.
WIDER = 4
# Names of ``KernelRows.op``, and the columns that tell the kernels of experts apart.
ELEMENTWISE = ("norm", "activation", "rope", "elementwise")
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
HEADS = ("head_dim", "heads", "kv_heads")  # columns of an attention key, after the precision
EXPERT_COLUMNS = ("hidden", "intermediate", "experts", "top_k", "moe_tp", "moe_ep")
Reading = tuple[FloatArray, BoolArray]  # seconds, and whether inside the measured grid


@dataclass(frozen=True, slots=True, eq=False)
class KernelRows:
    """Measured calls of one operator on one GPU: columns of shape ``[rows]``.

    ``op`` and the names of ``columns`` are those of ``inputs.ingest.kernel_files.native``. Each
    implementation that an engine chooses from has a separate KernelRows.
    """

    op: str
    precision: str
    columns: Mapping[str, FloatArray]
    seconds: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Surface:
    """Measured seconds over two ascending sizes.

    A missing point between two others is interpolated. A corner is missing if a large batch and a
    long context do not fit together. Its time is that of the next smaller batch, scaled by the
    batch.
    """

    x: FloatArray  # [n]
    y: FloatArray  # [m]
    seconds: FloatArray  # [n, m]
    measured: BoolArray  # [n, m], False for corners that were filled in

    def at(self, x: FloatArray, y: FloatArray) -> Reading:
        """Return the seconds at points (x, y), and the mask of points in the measured range.

        Logarithms of seconds are interpolated bilinearly. Beyond the last sizes, seconds grow in
        proportion to them.
        """
        knots = np.log(self.x), np.log(self.y)
        nearest = np.clip(x, self.x[0], self.x[-1]), np.clip(y, self.y[0], self.y[-1])
        points = np.stack(np.broadcast_arrays(*nearest), axis=-1)
        tables = np.stack([np.log(self.seconds), ~self.measured], axis=-1)
        grid = scipy.interpolate.RegularGridInterpolator(knots, tables)
        read = grid(np.log(points)).reshape(points.shape)
        seconds = np.exp(read[..., 0])
        seconds = seconds * np.maximum(x / self.x[-1], 1.0) * np.maximum(y / self.y[-1], 1.0)
        # A corner of the cell with weight 0 (the point is on a knot) may be unmeasured.
        return seconds, (read[..., 1] < 1e-9) & (nearest[0] == x) & (nearest[1] == y)


def surface(x: FloatArray, y: FloatArray, seconds: FloatArray) -> Surface:
    """Return the monotone surface through points in any order; of repeats, the last counts."""
    xs, i = np.unique(x, return_inverse=True)
    ys, j = np.unique(y, return_inverse=True)
    table = np.full((xs.size, ys.size), np.nan)
    table[i, j] = seconds
    table = _fill_gaps(_fill_gaps(table, ys).T, xs).T  # along the rows, then along the columns
    measured = np.isfinite(table)
    for row in range(table.shape[0]):  # a missing corner takes the time of the row before
        missing = ~np.isfinite(table[row])
        if row and missing.any():
            table[row, missing] = table[row - 1, missing] * xs[row] / xs[row - 1]
    for column in range(table.shape[1]):  # the first rows have no smaller batch, so scale by y
        missing = ~np.isfinite(table[:, column])
        if column and missing.any():
            table[missing, column] = table[missing, column - 1] * ys[column] / ys[column - 1]
    table = np.where(np.isfinite(table), table, np.nanmin(table))
    return Surface(xs, ys, monotone(table), measured)


def _fill_gaps(table: FloatArray, knots: FloatArray) -> FloatArray:
    """Interpolate the missing values of each row that lie between two measured ones."""
    result = table.copy()
    for row in result:
        measured = np.flatnonzero(np.isfinite(row))
        if 1 < measured.size < row.size:
            inner = slice(measured[0], measured[-1] + 1)
            logs = np.interp(np.log(knots[inner]), np.log(knots[measured]), np.log(row[measured]))
            row[inner] = np.exp(logs)
    return result


@dataclass(frozen=True, slots=True, eq=False)
class GemmTable:
    """Seconds of matrix products over rows m, a line for each measured (n, k).

    Other n and k are interpolated from four measured neighbours.
    """

    lines: Mapping[tuple[int, int], Line]

    def at(self, m: FloatArray, n: int, k: int) -> Reading | None:
        """Return the seconds of matrix products m x k times k x n; None if not measured nearby.

        The second value is the mask of products within the measured points. Logarithms of seconds
        are interpolated between the measured n and k around the product's.
        """
        exact = self.lines.get((n, k))
        if exact is not None:
            return exact.at(m), exact.inside(m)
        ns, ks = (np.unique(sizes) for sizes in zip(*self.lines, strict=True))
        (n0, n1), (k0, k1) = _neighbours(ns, n), _neighbours(ks, k)
        neighbours = [(a, b) for a in (n0, n1) for b in (k0, k1)]
        corners = [self.lines[int(a), int(b)] for a, b in neighbours if (a, b) in self.lines]
        if len(corners) < len(neighbours):
            return None
        logs = [np.log(corner.at(m)) for corner in corners]
        beyond = max(n / n1, 1.0) * max(k / k1, 1.0)
        inside = n0 <= n <= WIDER * n1 and k0 <= k <= k1
        n_share, k_share = _log_position(n0, n1, n), _log_position(k0, k1, k)
        weights = np.outer((1 - n_share, n_share), (1 - k_share, k_share)).ravel()
        seconds = np.exp(np.tensordot(weights, logs, 1)) * beyond
        return seconds, np.all([corner.inside(m) for corner in corners], axis=0) & inside


def fastest(lines: Sequence[Line], size: FloatArray) -> Reading | None:
    """Return the seconds of the fastest line at each size, and the mask of measured sizes.

    Lines are implementations, such as NCCL and a custom all-reduce in a CUDA graph. Engines choose
    between them by size. None: there is no line.
    """
    if not lines:
        return None
    seconds = np.min([line.at(size) for line in lines], axis=0)
    return seconds, np.any([line.inside(size) for line in lines], axis=0)


def _neighbours(knots: FloatArray, value: float) -> tuple[float, float]:
    """Return the nearest knot at or below ``value``, and the nearest at or above."""
    above = int(np.searchsorted(knots, value))
    return float(knots[max(above - 1, 0)]), float(knots[min(above, knots.size - 1)])


def _log_position(low: float, high: float, value: float) -> float:
    """Return the position of ``value`` between two sizes, 0 to 1 in logarithms."""
    if low == high:
        return 0.0
    return float(np.clip(np.log(value / low) / np.log(high / low), 0.0, 1.0))


AttentionKey = tuple[str, int, int, int]  # precision of the KV cache, head dim, heads, kv heads
ExpertsKey = tuple[str, int, int, int, int, int, int]  # precision, shape, top k, tp, ep


@dataclass(frozen=True, slots=True, eq=False)
class Kernels:
    """All measured kernels of one GPU type."""

    gpu: str
    source: str
    gemm: Mapping[str, GemmTable] = field(default_factory=dict)
    prefill: Mapping[AttentionKey, Surface] = field(default_factory=dict)  # sequences, tokens each
    decode: Mapping[AttentionKey, Surface] = field(default_factory=dict)  # sequences, context
    beside: Mapping[AttentionKey, Surface] = field(default_factory=dict)  # decode, among prompts
    experts: Mapping[ExpertsKey, Line] = field(default_factory=dict)
    elementwise: Mapping[tuple[int, int], Line] = field(default_factory=dict)  # read, written
    # by kind and number of GPUs
    collectives: Mapping[tuple[str, int], Sequence[Line]] = field(default_factory=dict)

    def read(self, operator: Operator, iteration: Iteration) -> Reading | None:
        """Return the seconds of one call, and the mask of calls within measured points (a reading).

        None if the operator was not measured at all.
        """
        rows = np.asarray(operator.rows(iteration))
        reading = self._read(operator, iteration, rows)
        if reading is None:
            return None
        seconds, inside = reading
        return np.where(rows > 0, seconds, 0.0), inside | (rows <= 0)

    def among_prompts(self) -> Kernels | None:
        """Return the kernels for iterations that also compute prompts; None if not measured."""
        return replace(self, decode={**self.decode, **self.beside}) if self.beside else None

    def _read(self, operator: Operator, iteration: Iteration, rows: FloatArray) -> Reading | None:
        """Return seconds and mask of calls with ``rows`` rows; None: the operator is unmeasured."""
        if isinstance(operator, Gemm):
            table = self.gemm.get(operator.precision)
            if table is None or operator.matrices > 1:
                return None
            return table.at(rows, operator.n, operator.k)
        if isinstance(operator, Attention):
            return self._attention(operator, rows, operator.keys(iteration))
        if isinstance(operator, Collective):
            message = np.asarray(operator.work(iteration).message_bytes)
            return fastest(self.collectives.get((operator.kind, operator.gpus), ()), message)
        line = None
        if isinstance(operator, Experts):
            line = self._experts(operator)
        elif isinstance(operator, Elementwise):
            line = self.elementwise.get((operator.read, operator.written))
        return None if line is None else (line.at(rows), line.inside(rows))

    def _attention(self, operator: Attention, rows: FloatArray, keys: FloatArray) -> Reading | None:
        """Return seconds and mask of attention, interpolated between numbers of query heads.

        ``rows`` are sequences of a decode, or tokens of a prompt, with ``keys`` per row. Return
        None if no table has a similar shape.
        """
        if operator.qk_dim != operator.v_dim:
            return None
        tables = self.decode if operator.axis == "decodes" else self.prefill
        shape = (operator.kv_cache, operator.qk_dim, operator.kv_heads)
        same = {key[2]: table for key, table in tables.items() if (*key[:2], key[3]) == shape}
        heads = np.array(sorted(same))
        if not heads.size or not heads[0] <= operator.heads <= heads[-1]:
            return None
        # Measured numbers of query heads at or around the operator's
        fewer = int(heads[np.searchsorted(heads, operator.heads, side="right") - 1])
        more = int(heads[np.searchsorted(heads, operator.heads)])
        if operator.axis == "decodes":
            batch, length = rows, np.maximum(keys, 1.0)
        else:
            # A causal prompt of n tokens has n / 2 keys per token. A chunk after others has more
            # keys. It takes the time of the whole prompt with the same number of pairs.
            length = np.maximum(2.0 * keys, 1.0)
            complete = rows >= length
            length = np.where(complete, length, np.sqrt(np.maximum(rows * length, 1.0)))
            batch = np.where(complete, rows / length, 1.0)
        seconds_fewer, inside_fewer = same[fewer].at(batch, length)
        seconds_more, inside_more = same[more].at(batch, length)
        share = _log_position(fewer, more, operator.heads)
        return seconds_fewer ** (1.0 - share) * seconds_more**share, inside_fewer & inside_more

    def _experts(self, operator: Experts) -> Line | None:
        """Return the measured seconds over tokens of these experts; None if there are none.

        Measurements with block-scaled weights replace missing ones.
        """
        if operator.dispatched:  # the measurements have all tokens on every GPU
            return None
        sizes = (operator.hidden, operator.intermediate * operator.tp, operator.experts)
        spread = (operator.top_k, operator.tp, operator.ep)
        line = self.experts.get((operator.precision, *sizes, *spread))
        return line or self.experts.get((f"{operator.precision}_block", *sizes, *spread))


def kernels(gpu: str, source: str, rows: Iterable[KernelRows]) -> Kernels:
    """Build tables from the measured rows of one GPU type."""
    rows_by_operator: dict[str, list[KernelRows]] = defaultdict(list)
    for measured in rows:
        rows_by_operator[measured.op].append(measured)
    gemms: dict[str, dict[tuple[int, int], Line]] = defaultdict(dict)
    for (precision, n, k), line in _lines(rows_by_operator["gemm"], ("n", "k"), "m").items():
        gemms[precision][n, k] = line
    collectives: dict[tuple[str, int], list[Line]] = defaultdict(list)  # by implementation
    for kind in COLLECTIVES:
        for implementation in rows_by_operator[kind]:
            lines = _lines([implementation], ("gpus",), "message_bytes")
            for (_, gpus), line in lines.items():
                collectives[kind, gpus].append(line)
    elementwise_rows = [measured for op in ELEMENTWISE for measured in rows_by_operator[op]]
    return Kernels(
        gpu=gpu,
        source=source,
        gemm={precision: GemmTable(lines) for precision, lines in gemms.items()},
        prefill=_attention(rows_by_operator["attention_prefill"], "isl"),
        decode=_attention(rows_by_operator["attention_decode"], "context"),
        beside=_attention([_medians(m) for m in rows_by_operator["attention_beside"]], "context"),
        experts=_lines(rows_by_operator["experts"], EXPERT_COLUMNS, "tokens"),
        elementwise={
            (k, n): line for (_, k, n), line in _lines(elementwise_rows, ("k", "n"), "m").items()
        },
        collectives=collectives,
    )


def _group_rows(
    measured: list[KernelRows], key: tuple[str, ...], names: tuple[str, ...]
) -> Iterator[tuple[tuple[Any, ...], list[FloatArray]]]:
    """Yield the columns ``names`` and the seconds of rows with the same ``key``.

    Rows are also grouped by precision. The first value is the precision, and then the values of the
    columns ``key`` as whole numbers.
    """
    for precision in sorted({rows.precision for rows in measured}):
        same = [rows for rows in measured if rows.precision == precision]
        columns = [np.concatenate([r.columns[name] for r in same]) for name in (*key, *names)]
        columns.append(np.concatenate([rows.seconds for rows in same]))
        keys, group, counts = np.unique(
            np.stack(columns[: len(key)], axis=1), axis=0, return_inverse=True, return_counts=True
        )
        order = np.argsort(group.ravel(), kind="stable")
        for values, part in zip(keys, np.split(order, np.cumsum(counts)), strict=False):
            rest = [column[part] for column in columns[len(key) :]]
            yield (precision, *map(int, values)), rest


def _lines(measured: list[KernelRows], key: tuple[str, ...], size: str) -> dict[Any, Line]:
    """Return the lines of seconds over the column ``size`` by precision and the columns ``key``."""
    return {values: monotone_line(*rest) for values, rest in _group_rows(measured, key, (size,))}


def _attention(measured: list[KernelRows], length: str) -> dict[AttentionKey, Surface]:
    """Return surfaces of seconds over batch and ``length``, by attention key.

    ``length`` is "isl" for whole prompts and "context" for decodes.
    """
    tables = {}
    for (precision, *values), rest in _group_rows(measured, HEADS, ("batch", "context", length)):
        batch, context, sizes, seconds = rest
        use = context == 0 if length == "isl" else slice(None)
        if batch[use].size:
            tables[precision, *values] = surface(batch[use], sizes[use], seconds[use])
    return tables


def _medians(rows: KernelRows) -> KernelRows:
    """Return one row per number of sequences and context: the median over prompt chunks."""
    names = (*HEADS, "batch", "context")
    distinct, seconds, _ = medians(
        np.column_stack([rows.columns[name] for name in names]), rows.seconds
    )
    return replace(rows, columns=dict(zip(names, distinct.T, strict=True)), seconds=seconds)

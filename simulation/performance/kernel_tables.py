"""Tables of measured kernels of one GPU type, and their interpolation.

All tables are made monotone and then interpolated in logarithms (a power law between neighbours).
Beyond the last point time grows in proportion to the size, and ``inside`` is False.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import scipy

from simulation.arrays import BoolArray, FloatArray
from simulation.performance.monotone import TimeCurve, medians, monotone, monotone_curve
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
MAX_WIDTH_RATIO = 4
# Names of ``KernelRows.op``, and the columns that tell the kernels of experts apart.
ELEMENTWISE = ("norm", "activation", "rope", "elementwise")
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
HEADS = ("head_dim", "heads", "kv_heads")  # columns of an attention key, after the precision
EXPERT_COLUMNS = ("hidden", "intermediate", "experts", "top_k", "moe_tp", "moe_ep")


class Reading(NamedTuple):
    """Seconds of calls, and the mask of calls within the measured sizes; arrays of one shape."""

    seconds: FloatArray
    is_measured: BoolArray


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

    A missing point between two others is interpolated. A corner was not measured if a large batch
    and a long context do not fit in memory together. It gets the time of the next smaller batch,
    times the ratio of the batches.
    """

    x: FloatArray  # [n]
    y: FloatArray  # [m]
    seconds: FloatArray  # [n, m]
    measured: BoolArray  # [n, m], False for corners that were filled in

    def at(self, x: FloatArray, y: FloatArray) -> Reading:
        """Return the seconds at points (x, y), and the mask of points in the measured range.

        Logarithms of seconds are interpolated bilinearly over the logarithms of sizes. Beyond the
        last sizes, seconds grow in proportion to the sizes.
        """
        # Interpolate two tables at once: log seconds, and 1 for points that were not measured.
        near_x, near_y = np.clip(x, self.x[0], self.x[-1]), np.clip(y, self.y[0], self.y[-1])
        points = np.stack(np.broadcast_arrays(near_x, near_y), axis=-1)
        tables = np.stack([np.log(self.seconds), ~self.measured], axis=-1)
        knots = np.log(self.x), np.log(self.y)
        grid = scipy.interpolate.RegularGridInterpolator(knots, tables)
        interpolated = grid(np.log(points)).reshape(points.shape)
        log_seconds, unmeasured_weight = interpolated[..., 0], interpolated[..., 1]
        growth = np.maximum(x / self.x[-1], 1.0) * np.maximum(y / self.y[-1], 1.0)
        is_within = (near_x == x) & (near_y == y)
        return Reading(np.exp(log_seconds) * growth, (unmeasured_weight < 1e-9) & is_within)


def surface(x: FloatArray, y: FloatArray, seconds: FloatArray) -> Surface:
    """Return the surface of ``seconds`` that never fall over ``x`` and ``y``, points in any order.

    Of repeated points, the last counts.
    """
    xs, row = np.unique(x, return_inverse=True)
    ys, column = np.unique(y, return_inverse=True)
    table = np.full((xs.size, ys.size), np.nan)
    table[row, column] = seconds
    table = _fill_gaps(_fill_gaps(table, ys).T, xs).T  # along the rows, then along the columns
    measured = np.isfinite(table)
    for i in range(1, xs.size):  # a missing corner takes the time of the row before, scaled by x
        missing = np.isnan(table[i])
        table[i, missing] = table[i - 1, missing] * xs[i] / xs[i - 1]
    for j in range(1, ys.size):  # the first rows have no row before, so scale by y
        missing = np.isnan(table[:, j])
        table[missing, j] = table[missing, j - 1] * ys[j] / ys[j - 1]
    table = np.where(np.isnan(table), np.nanmin(table), table)
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
    """Seconds of matrix products m x k times k x n: for each measured (n, k), a curve over m.

    Other n and k are interpolated from four measured neighbours.
    """

    curves: Mapping[tuple[int, int], TimeCurve]

    def at(self, m: FloatArray, n: int, k: int) -> Reading | None:
        """Return the seconds of matrix products m x k times k x n; None if not measured nearby.

        The second value is the mask of products within the measured points. Logarithms of seconds
        are interpolated between the measured n and k around the product's.
        """
        measured = self.curves.get((n, k))
        if measured is not None:
            return Reading(measured.at(m), measured.inside(m))
        # The four measured neighbours: n and k at or below, and at or above, the product's.
        low_n, high_n = _neighbours(np.unique([n for n, _ in self.curves]), n)
        low_k, high_k = _neighbours(np.unique([k for _, k in self.curves]), k)
        sizes = list(product((int(low_n), int(high_n)), (int(low_k), int(high_k))))
        if not all(n_and_k in self.curves for n_and_k in sizes):
            return None
        corners = [self.curves[n_and_k] for n_and_k in sizes]
        n_share, k_share = _log_position(low_n, high_n, n), _log_position(low_k, high_k, k)
        weights = np.outer((1 - n_share, n_share), (1 - k_share, k_share)).ravel()
        log_seconds = np.tensordot(weights, [np.log(corner.at(m)) for corner in corners], 1)
        growth = max(n / high_n, 1.0) * max(k / high_k, 1.0)  # beyond the largest measured sizes
        is_within = low_n <= n <= MAX_WIDTH_RATIO * high_n and low_k <= k <= high_k
        is_measured = np.all([corner.inside(m) for corner in corners], axis=0) & is_within
        return Reading(np.exp(log_seconds) * growth, is_measured)


def fastest(curves: Sequence[TimeCurve], size: FloatArray) -> Reading | None:
    """Return the seconds of the fastest curve at each size, and the mask of measured sizes.

    Each curve is an implementation, such as NCCL and a custom all-reduce in a CUDA graph. Engines
    choose between them by size. None if there is no curve.
    """
    if not curves:
        return None
    seconds = np.min([curve.at(size) for curve in curves], axis=0)
    return Reading(seconds, np.any([curve.inside(size) for curve in curves], axis=0))


def _neighbours(knots: FloatArray, value: float) -> tuple[float, float]:
    """Return the nearest knot at or below ``value``, and the nearest at or above."""
    above = int(np.searchsorted(knots, value))
    return float(knots[max(above - 1, 0)]), float(knots[min(above, knots.size - 1)])


def _log_position(low: float, high: float, value: float) -> float:
    """Return the position of ``value`` between two sizes, 0 to 1 in logarithms."""
    if low == high:
        return 0.0
    return float(np.clip(np.log(value / low) / np.log(high / low), 0.0, 1.0))


def _prompts_of_chunks(tokens: FloatArray, keys: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the number and length of whole prompts that take as long as chunks of ``tokens``.

    A causal prompt of n tokens has n / 2 keys per token. A chunk after others has more ``keys``. It
    takes the time of the whole prompt with the same number of pairs.
    """
    length = np.maximum(2.0 * keys, 1.0)
    complete = tokens >= length
    length = np.where(complete, length, np.sqrt(np.maximum(tokens * length, 1.0)))
    return np.where(complete, tokens / length, 1.0), length


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
    # decodes in iterations that also compute prompts
    beside: Mapping[AttentionKey, Surface] = field(default_factory=dict)
    experts: Mapping[ExpertsKey, TimeCurve] = field(default_factory=dict)
    elementwise: Mapping[tuple[int, int], TimeCurve] = field(default_factory=dict)  # read, written
    # by kind and number of GPUs
    collectives: Mapping[tuple[str, int], Sequence[TimeCurve]] = field(default_factory=dict)

    def read(self, operator: Operator, iteration: Iteration) -> Reading | None:
        """Return the seconds of one call in each iteration, and the mask of measured iterations.

        None if the operator was not measured at all.
        """
        rows = np.asarray(operator.rows(iteration))
        reading = self._read(operator, iteration, rows)
        if reading is None:
            return None
        seconds, is_measured = reading
        return Reading(np.where(rows > 0, seconds, 0.0), is_measured | (rows <= 0))

    def among_prompts(self) -> Kernels | None:
        """Return the kernels for iterations that also compute prompts; None if not measured."""
        return replace(self, decode={**self.decode, **self.beside}) if self.beside else None

    def _read(self, operator: Operator, iteration: Iteration, rows: FloatArray) -> Reading | None:
        """Return what ``read`` returns, for calls with ``rows > 0`` tokens or sequences."""
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
        curve = None
        if isinstance(operator, Experts):
            curve = self._experts(operator)
        elif isinstance(operator, Elementwise):
            curve = self.elementwise.get((operator.read, operator.written))
        return None if curve is None else Reading(curve.at(rows), curve.inside(rows))

    def _attention(self, operator: Attention, rows: FloatArray, keys: FloatArray) -> Reading | None:
        """Return what ``read`` returns for attention, interpolated between numbers of query heads.

        ``rows`` are sequences of a decode, or tokens of a prompt, with ``keys`` per row. None if no
        table has the same head size, KV heads and precision, with as many heads.
        """
        if operator.qk_dim != operator.v_dim:
            return None
        tables = self.decode if operator.axis == "decodes" else self.prefill
        shape = (operator.kv_cache, operator.qk_dim, operator.kv_heads)
        by_heads = {
            heads: table
            for (precision, head_dim, heads, kv_heads), table in tables.items()
            if (precision, head_dim, kv_heads) == shape
        }
        # Measured numbers of query heads at or around the operator's
        fewer = max((heads for heads in by_heads if heads <= operator.heads), default=None)
        more = min((heads for heads in by_heads if heads >= operator.heads), default=None)
        if fewer is None or more is None:
            return None
        if operator.axis == "decodes":
            batch, length = rows, np.maximum(keys, 1.0)
        else:
            batch, length = _prompts_of_chunks(rows, keys)
        seconds_fewer, inside_fewer = by_heads[fewer].at(batch, length)
        seconds_more, inside_more = by_heads[more].at(batch, length)
        share = _log_position(fewer, more, operator.heads)
        # The geometric mean, weighted by the position between the two.
        seconds = seconds_fewer ** (1.0 - share) * seconds_more**share
        return Reading(seconds, inside_fewer & inside_more)

    def _experts(self, operator: Experts) -> TimeCurve | None:
        """Return the measured seconds of these experts over tokens; None if there are none.

        Without measurements in the precision, those of block-scaled weights are taken.
        """
        if operator.dispatched:  # the measurements have all tokens on every GPU
            return None
        sizes = (operator.hidden, operator.intermediate * operator.tp, operator.experts)
        spread = (operator.top_k, operator.tp, operator.ep)
        curve = self.experts.get((operator.precision, *sizes, *spread))
        return curve or self.experts.get((f"{operator.precision}_block", *sizes, *spread))


def kernels(gpu: str, source: str, rows: Iterable[KernelRows]) -> Kernels:
    """Build tables from the measured rows of one GPU type."""
    by_operator: dict[str, list[KernelRows]] = defaultdict(list)
    for measured in rows:
        by_operator[measured.op].append(measured)
    gemms: dict[str, dict[tuple[int, int], TimeCurve]] = defaultdict(dict)
    for (precision, n, k), curve in _curves(by_operator["gemm"], ("n", "k"), "m").items():
        gemms[precision][n, k] = curve
    elementwise_rows = [measured for op in ELEMENTWISE for measured in by_operator[op]]
    elementwise = _curves(elementwise_rows, ("k", "n"), "m")
    return Kernels(
        gpu=gpu,
        source=source,
        gemm={precision: GemmTable(curves) for precision, curves in gemms.items()},
        prefill=_attention(by_operator["attention_prefill"], "isl"),
        decode=_attention(by_operator["attention_decode"], "context"),
        beside=_attention([_medians(m) for m in by_operator["attention_beside"]], "context"),
        experts=_curves(by_operator["experts"], EXPERT_COLUMNS, "tokens"),
        elementwise={(k, n): curve for (_, k, n), curve in elementwise.items()},
        collectives=_collectives(by_operator),
    )


def _collectives(rows: Mapping[str, list[KernelRows]]) -> dict[tuple[str, int], list[TimeCurve]]:
    """Return a curve for each implementation of a collective, by kind and number of GPUs."""
    collectives: dict[tuple[str, int], list[TimeCurve]] = defaultdict(list)
    for kind in COLLECTIVES:
        for implementation in rows[kind]:
            curves = _curves([implementation], ("gpus",), "message_bytes")
            for (_, gpus), curve in curves.items():
                collectives[kind, gpus].append(curve)
    return collectives


def _group_rows(
    measured: list[KernelRows], key: tuple[str, ...], names: tuple[str, ...]
) -> Iterator[tuple[tuple[Any, ...], list[FloatArray]]]:
    """Yield groups of rows with one precision and the same values in the columns ``key``.

    Each is a pair: (the precision and those values, as whole numbers), and a list of the columns
    ``names`` of its rows, with their seconds last.
    """
    for precision in sorted({rows.precision for rows in measured}):
        tables = [rows for rows in measured if rows.precision == precision]
        columns = {
            name: np.concatenate([table.columns[name] for table in tables])
            for name in (*key, *names)
        }
        seconds = np.concatenate([table.seconds for table in tables])
        key_columns = np.stack([columns[name] for name in key], axis=1)
        distinct, group = np.unique(key_columns, axis=0, return_inverse=True)
        for index, values in enumerate(distinct.tolist()):
            members = np.flatnonzero(group.ravel() == index)
            group_columns = [columns[name][members] for name in names]
            yield (precision, *map(int, values)), [*group_columns, seconds[members]]


def _curves(measured: list[KernelRows], key: tuple[str, ...], size: str) -> dict[Any, TimeCurve]:
    """Return curves of seconds over the column ``size``, by precision and the columns ``key``."""
    groups = _group_rows(measured, key, (size,))
    return {values: monotone_curve(sizes, seconds) for values, (sizes, seconds) in groups}


def _attention(measured: list[KernelRows], length: str) -> dict[AttentionKey, Surface]:
    """Return surfaces of seconds over batch and ``length``, by attention key.

    ``length`` is "isl" for whole prompts and "context" for decodes.
    """
    tables = {}
    for (precision, *values), columns in _group_rows(measured, HEADS, ("batch", "context", length)):
        batch, context, lengths, seconds = columns
        used = context == 0 if length == "isl" else slice(None)  # a whole prompt has no context
        if batch[used].size:
            tables[precision, *values] = surface(batch[used], lengths[used], seconds[used])
    return tables


def _medians(rows: KernelRows) -> KernelRows:
    """Return one row for each shape, batch and context: the median over sizes of prompt chunks."""
    names = (*HEADS, "batch", "context")
    distinct, seconds, _ = medians(
        np.column_stack([rows.columns[name] for name in names]), rows.seconds
    )
    return replace(rows, columns=dict(zip(names, distinct.T, strict=True)), seconds=seconds)

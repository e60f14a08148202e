"""The compiled form of a profile: a flat array of numbers and one kernel that reads it.

Two layouts cover all kinds of profile. LINEAR is the formula of methods.md C1. GRID is a sum of
terms, called parts. Each is a piecewise linear table over one or two sizes x and y:

    T(b, c, p, a) = dense(b + p) + decode(b, c / b) + prefill(p, a / p) - overlap [b > 0 and p > 0]

See ``profile`` for b, c, p and a. Tables of whole iterations have no dense part. Their decode and
prefill parts both include one reading of the weights, so overlap removes one from mixed iterations
(those with decodes and prompts).

The part BESIDE replaces decode in mixed iterations if it is given, since attention kernels are
slower at decodes in a call that also has prompts. With ``mixed`` > 0 a mixed iteration takes
mixed * prefill(p + b, a / p) instead (splitwise-sim's rule).

Beyond its last knot a part continues with its last slope. Before its first knot it keeps its first
value. ``inside`` returns which iterations are within the measured range.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from simulation.arrays import BoolArray, FloatArray
from simulation.compiler import cached_kernel, kernel
from simulation.errors import SimulationError

LINEAR, GRID = 0, 1  # kinds of curves, the first of ``Curve.values``
FOREVER = 1 << 62  # iterations
SHARPNESS = 3.0  # exponent q of two overlapping times: (x^q + y^q)^(1/q)

# Indices into ``Curve.values``. Both layouts begin with KIND.
KIND = 0
# LINEAR: the parameters, then the most decodes, prefill tokens and context of the fitted rows.
ALPHA, BETA, GAMMA, DELTA, MOST_DECODES, MOST_TOKENS, MOST_CONTEXT = range(1, 8)
# GRID: three numbers for each of the four parts. They are the offset of its x knots, the number of
# x knots (0: no such part) and the number of y knots (1: no dependence on y). The parts follow this
# header. A part has its x knots, y knots and values in row-major order. Then come the smallest and
# the largest measured y of each x knot.
OVERLAP, MIXED, DENSE, DECODE, PREFILL, BESIDE = 1, 2, 3, 6, 9, 12
HEADER = BESIDE + 3
ANY = 1e300  # as a limit of y: no limit
NO_LIMIT = 1e18  # as a limit of the fitted rows of a line: no limit


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """A compiled profile as a read-only array of numbers ``[n]``."""

    values: FloatArray

    def __post_init__(self) -> None:
        values = np.ascontiguousarray(self.values, dtype=np.float64)
        if not np.isfinite(values[1:]).all():
            raise SimulationError("A performance curve must consist of finite numbers.")
        values.setflags(write=False)
        object.__setattr__(self, "values", values)

    @property
    def kind(self) -> int:
        return int(self.values[KIND])


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One term of a curve: ``seconds [n, m]`` at ascending knots ``x [n]`` and ``y [m]``.

    The dense part has x = tokens b + p and a single y. Decode has x = sequences b and y = mean
    context c / b. Prefill has x = tokens p and y = keys per token a / p. ``low [n]`` and
    ``high [n]`` bound the measured y at each x. By default they are the first and the last y.
    """

    x: FloatArray
    y: FloatArray
    seconds: FloatArray
    low: FloatArray = field(default_factory=lambda: np.zeros(0))
    high: FloatArray = field(default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        if (np.diff(self.x) <= 0).any() or (np.diff(self.y) <= 0).any():
            raise SimulationError("The knots of a curve must ascend.")
        if (self.seconds < 0).any():
            raise SimulationError("The time of an iteration must be at least 0.")
        ends = (self.y[0], self.y[-1]) if self.y.size > 1 else (-ANY, ANY)
        for name, end in zip(("low", "high"), ends, strict=True):
            if not getattr(self, name).size:
                object.__setattr__(self, name, np.full(self.x.size, end))


NOTHING = Part(np.zeros(1), np.zeros(1), np.zeros((1, 1)))


def packed_curves(curves: Sequence[FloatArray]) -> FloatArray:
    """Return the values of several curves as rows, padded with 0 to the longest."""
    packed = np.zeros((len(curves), max(len(values) for values in curves)))
    for row, values in zip(packed, curves, strict=True):
        row[: len(values)] = values
    return packed


def linear(
    alpha_s: float,
    beta_s: float,
    gamma_s: float,
    delta_s: float,
    decodes: float = np.inf,
    prefill_tokens: float = np.inf,
    context: float = np.inf,
) -> Curve:
    """Return the curve ``max(alpha if b, gamma if p) + beta b + delta p``.

    b are the decodes of an iteration, p its prompt tokens. The last three arguments are the largest
    sizes among the fitted rows: sequences, prompt tokens, and context of a sequence in tokens.
    """
    limits = [min(limit, NO_LIMIT) for limit in (decodes, prefill_tokens, context)]
    return Curve(np.array([LINEAR, alpha_s, beta_s, gamma_s, delta_s, *limits]))


def grid(
    *,
    dense: Part = NOTHING,
    decode: Part = NOTHING,
    prefill: Part = NOTHING,
    beside: Part | None = None,
    overlap_s: float = 0.0,
    mixed: float = 0.0,
) -> Curve:
    """Return the curve that is the sum of these parts.

    ``beside`` replaces ``decode`` in mixed iterations, which also prefill. ``overlap_s`` is
    subtracted from them; it must not exceed the time of the cheapest one. ``mixed`` > 0: they take
    this factor times the prefill of all their tokens. The header has each part's offset and sizes.
    """
    header = np.zeros(HEADER)
    header[:3] = GRID, overlap_s, mixed
    body = [header]
    parts = {DENSE: dense, DECODE: decode, PREFILL: prefill, BESIDE: beside}
    for header_index, part in parts.items():
        if part is not None:
            offset = sum(array.size for array in body)
            header[header_index : header_index + 3] = offset, part.x.size, part.y.size
            body += [part.x, part.y, part.seconds.ravel(), part.low, part.high]
    return Curve(np.concatenate(body))


@kernel
def _segment(values: Any, first: int, count: int, value: float) -> tuple[int, float]:
    """Return the interval of knots that contains ``value``: its first knot, and the position in it.

    The ``count`` knots are ``values[first : first + count]``, and the first value returned counts
    from ``first``. The position is 0 at the begin of the interval and 1 at its end. It is negative
    before the first knot, above 1 after the last, and 0 for a single knot.
    """
    if count == 1:
        return 0, 0.0
    low, high = 0, count - 1
    while high - low > 1:
        middle = (low + high) // 2
        if values[first + middle] <= value:
            low = middle
        else:
            high = middle
    begin, end = values[first + low], values[first + low + 1]
    return low, (value - begin) / (end - begin)


@kernel
def _between(values: Any, index: int, step: int, share: float) -> float:
    """Return the interpolation from ``values[index]`` (share 0) to ``values[index + step]`` (1).

    The second value is not read if the share is 0, so it may be outside the array.
    """
    begin = values[index]
    if share == 0.0:
        return float(begin)
    return float(begin + share * (values[index + step] - begin))


@kernel
def _part_seconds(values: Any, start: int, x: float, y: float) -> float:
    """Return the seconds at (x, y) of one part of a grid curve; see ``Part`` for x and y.

    ``values[start : start + 3]`` are the index of the part's data and its numbers of x and y knots.
    The data are the x knots, the y knots, and the seconds, row by row of x. Seconds stay constant
    below the first knots. Beyond the last knots, the last slopes continue.
    """
    first, x_knots, y_knots = int(values[start]), int(values[start + 1]), int(values[start + 2])
    x_index, x_share = _segment(values, first, x_knots, x)
    y_index, y_share = _segment(values, first + x_knots, y_knots, y)
    x_share, y_share = max(x_share, 0.0), max(y_share, 0.0)
    cell = first + x_knots + y_knots + x_index * y_knots + y_index
    below = _between(values, cell, 1, y_share)
    if x_share == 0.0:  # with a single x knot, there is no row above
        return float(below)
    above = _between(values, cell + y_knots, 1, y_share)
    return float(below + x_share * (above - below))


@kernel
def iteration_seconds(
    values: Any, decodes: float, context: float, prompt: float, pairs: float
) -> float:
    """Return the seconds of one iteration from ``Curve.values``, at least 0.

    The iteration has ``decodes`` sequences with ``context`` tokens in all, and ``prompt`` tokens of
    prompts. ``pairs`` is the number of token pairs in the attention of these prompts.

    The seconds are a sum of parts: DENSE for all tokens, DECODE (or BESIDE, if the iteration also
    has prompts and the curve has that part) and PREFILL. With a factor MIXED, an iteration of both
    takes that factor times a prefill of all its tokens.
    """
    if values[KIND] == LINEAR:
        base = values[ALPHA] if decodes > 0 else 0.0
        if prompt > 0:
            base = max(base, values[GAMMA])
        return float(base + values[BETA] * decodes + values[DELTA] * prompt)
    total = 0.0
    is_mixed = decodes > 0 and prompt > 0
    if is_mixed and values[MIXED] > 0:
        total = values[MIXED] * _part_seconds(values, PREFILL, prompt + decodes, pairs / prompt)
        return max(float(total), 0.0)
    if decodes + prompt > 0:
        total += _part_seconds(values, DENSE, decodes + prompt, 0.0)
    if decodes > 0:
        part = BESIDE if is_mixed and values[BESIDE + 1] > 0 else DECODE
        total += _part_seconds(values, part, decodes, context / decodes)
    if prompt > 0:
        total += _part_seconds(values, PREFILL, prompt, pairs / prompt)
    if is_mixed:
        total -= values[OVERLAP]
    return max(float(total), 0.0)


@kernel
def _measured_limits(values: Any, start: int, x: float) -> tuple[float, float]:
    """Return the smallest and the largest measured y at ``x``, in the part at ``start``."""
    first, x_knots, y_knots = int(values[start]), int(values[start + 1]), int(values[start + 2])
    # After the knots and their grid, there are the lower limits at the x knots, then the upper.
    low = first + x_knots + y_knots + x_knots * y_knots
    high = low + x_knots
    i, share = _segment(values, first, x_knots, x)
    share = min(max(share, 0.0), 1.0)
    return _between(values, low + i, 1, share), _between(values, high + i, 1, share)


@kernel
def decode_growth(values: Any, decodes: float, total_context: float) -> tuple[float, int]:
    """Return by how many seconds each next decode iteration is longer, and for how many iterations.

    All iterations decode the same ``decodes`` sequences, so their mean context grows by one token
    each. At the first they have ``total_context`` tokens in all. The growth is constant until the
    curve changes its slope, or until a border of the measured range. It is 0 before the first knot
    of context, and that of the last segment beyond the last knot.
    """
    if values[KIND] == LINEAR:
        return 0.0, FOREVER
    first_y = int(values[DECODE] + values[DECODE + 1])  # the y knots follow the x knots
    y_knots = int(values[DECODE + 2])
    context = total_context / decodes
    growth, iterations = 0.0, 1e15
    if y_knots > 1:
        end = values[first_y + y_knots - 1]
        if context < values[first_y]:  # constant up to the first knot
            iterations = np.ceil(values[first_y] - context)
        else:
            j, _ = _segment(values, first_y, y_knots, context)
            low, high = values[first_y + j], values[first_y + j + 1]
            dense = _part_seconds(values, DENSE, decodes, 0.0)
            at_low = dense + _part_seconds(values, DECODE, decodes, low)
            at_high = dense + _part_seconds(values, DECODE, decodes, high)
            growth = (at_high - at_low) / (high - low)
            if context < end:  # else the last slope goes on
                iterations = np.floor(high - context) + 1.0
            if min(at_low, at_high) <= 0.0 or (context >= end and growth < 0.0):
                # The line is not valid here: time is clamped at 0, or would fall without end.
                growth, iterations = 0.0, 1.0
    measured_from, measured_to = _measured_limits(values, DECODE, decodes)
    if context < measured_from:
        iterations = min(iterations, np.ceil(measured_from - context))
    elif context <= measured_to:
        iterations = min(iterations, np.floor(measured_to - context) + 1.0)
    return float(growth), int(max(iterations, 1.0))


@kernel
def _is_measured(values: Any, start: int, x: float, y: float) -> bool:
    """Return whether (x, y) is inside the measured range of the part at header index ``start``.

    A part with a single value has no limits.
    """
    first, x_knots, y_knots = int(values[start]), int(values[start + 1]), int(values[start + 2])
    if x_knots * y_knots == 1:
        return True
    if x < values[first] or x > values[first + x_knots - 1]:
        return False
    low, high = _measured_limits(values, start, x)
    return bool(low <= y and y <= high)


@kernel
def is_iteration_measured(
    values: Any, decodes: float, context: float, prompt: float, pairs: float
) -> bool:
    """Return whether one iteration is inside the measured range (GRID) or fitted rows (LINEAR).

    For the arguments see ``iteration_seconds``.
    """
    if values[KIND] == LINEAR:
        return bool(
            decodes <= values[MOST_DECODES]
            and prompt <= values[MOST_TOKENS]
            and context <= values[MOST_CONTEXT] * decodes
        )
    is_mixed = decodes > 0 and prompt > 0
    if is_mixed and values[MIXED] > 0:
        return bool(_is_measured(values, PREFILL, prompt + decodes, pairs / prompt))
    if decodes + prompt > 0 and not _is_measured(values, DENSE, decodes + prompt, 0.0):
        return False
    part = BESIDE if is_mixed and values[BESIDE + 1] > 0 else DECODE
    if decodes > 0 and not _is_measured(values, part, decodes, context / decodes):
        return False
    return prompt <= 0 or bool(_is_measured(values, PREFILL, prompt, pairs / prompt))


@cached_kernel
def _evaluate(values: Any, decodes: Any, context: Any, prompt: Any, pairs: Any, out: Any) -> None:
    """Fill ``out`` with the seconds of iterations; all arrays are flat."""
    for i in range(out.size):
        out[i] = iteration_seconds(values, decodes[i], context[i], prompt[i], pairs[i])


@cached_kernel
def _inside(values: Any, decodes: Any, context: Any, prompt: Any, pairs: Any, out: Any) -> None:
    """Fill ``out`` with the mask of iterations inside the measured range; all arrays are flat."""
    for i in range(out.size):
        out[i] = is_iteration_measured(values, decodes[i], context[i], prompt[i], pairs[i])


def _evaluate_iterations(fill: Any, curve: Curve, kind: Any, loads: Sequence[npt.ArrayLike]) -> Any:
    """Return what the kernel ``fill`` computes for each iteration, broadcast over ``loads``.

    ``kind`` is the array type of the results.
    """
    arrays = np.broadcast_arrays(*(np.asarray(load, np.float64) for load in loads))
    flat = [np.array(load).ravel() for load in arrays]  # numba warns of views
    out = np.empty(flat[0].size, kind)
    fill(curve.values, *flat, out)
    return out.reshape(arrays[0].shape)


def evaluate(curve: Curve, *loads: npt.ArrayLike) -> FloatArray:
    """Return the seconds of many iterations, broadcast over the four arrays ``loads``.

    For these see ``iteration_seconds``.
    """
    seconds: FloatArray = _evaluate_iterations(_evaluate, curve, np.float64, loads)
    return seconds


def inside(curve: Curve, *loads: npt.ArrayLike) -> BoolArray:
    """Return the mask of iterations inside the measured range (GRID) or fitted rows (LINEAR).

    The four arrays ``loads`` are broadcast. For these see ``iteration_seconds``.
    """
    mask: BoolArray = _evaluate_iterations(_inside, curve, np.bool_, loads)
    return mask


def x_and_seconds(values: FloatArray, header_index: int) -> tuple[FloatArray, FloatArray]:
    """Return the x knots ``[n, 1]`` of a part of a GRID curve, and its seconds ``[n, m]``.

    Both are views of ``values``. ``header_index`` is that of the part, such as DECODE. A part that
    is missing has no knots.
    """
    first, x_knots, y_knots = (int(v) for v in values[header_index : header_index + 3])
    table = first + x_knots + y_knots
    seconds = values[table : table + x_knots * y_knots].reshape(x_knots, y_knots)
    return values[first : first + x_knots, None], seconds


def _scale_parts(values: FloatArray, factors: Mapping[int, float]) -> None:
    """Multiply the seconds of the parts of a GRID curve by ``factors``, by their header index.

    The overlap gets the smallest factor, since it must not exceed the cheapest mixed iteration.
    """
    values[OVERLAP] *= min(factors.values())
    for header_index, factor in factors.items():
        _, seconds = x_and_seconds(values, header_index)
        seconds *= factor


def scaled_by_phase(
    curve: Curve, decode: float, prefill: float, decode_until: float, prefill_from: float
) -> Curve:
    """Return a GRID curve with the times of its parts multiplied by ``decode`` and ``prefill``.

    Both phases share the dense part, over all tokens of an iteration. Its factor is ``decode`` up
    to ``decode_until`` tokens and ``prefill`` from ``prefill_from`` tokens on. Between them it is
    interpolated over the log of the tokens. Raises SimulationError for a LINEAR curve.
    """
    if curve.kind != GRID:
        raise SimulationError("Only an operator or roofline profile can be calibrated by phase.")
    values = curve.values.copy()
    _scale_parts(values, {DECODE: decode, PREFILL: prefill, BESIDE: decode})
    all_tokens, seconds = x_and_seconds(values, DENSE)
    ends = np.log([decode_until, max(prefill_from, 2 * decode_until)])
    prefill_share = np.interp(np.log(np.maximum(all_tokens, 1.0)), ends, [0.0, 1.0])
    seconds *= decode ** (1 - prefill_share) * prefill**prefill_share
    return Curve(values)


def scale_curve(curve: Curve, prefill: float, decode: float | None = None) -> Curve:
    """Return a curve with the seconds of prompts and of decodes multiplied by positive factors.

    ``decode`` defaults to ``prefill``. In the dense part, the seconds of the first knot are the
    time to read the weights, and are multiplied by ``decode``. The seconds beyond that are
    multiplied by ``prefill``.
    """
    decode = prefill if decode is None else decode
    if not 0 < min(prefill, decode) <= max(prefill, decode) < np.inf:
        raise SimulationError("A curve can only be scaled by positive factors.")
    values = curve.values.copy()
    if curve.kind == LINEAR:
        values[[ALPHA, BETA]] *= decode
        values[[GAMMA, DELTA]] *= prefill
        return Curve(values)
    _scale_parts(values, {DECODE: decode, PREFILL: prefill, BESIDE: decode})
    _, seconds = x_and_seconds(values, DENSE)
    read_s = np.minimum(seconds, seconds[:1])
    seconds[:] = decode * read_s + prefill * (seconds - read_s)
    return Curve(values)


def with_host_time(curve: Curve, seconds: float) -> Curve:
    """Return a curve whose decodes overlap with ``seconds`` of the host CPU for each sequence."""
    if not seconds:
        return curve
    values = curve.values.copy()
    for header_index in (DECODE, BESIDE):
        sequences, gpu_s = x_and_seconds(values, header_index)
        gpu_s[:] = overlapped_seconds(gpu_s, seconds * sequences)
    return Curve(values)


def overlapped_seconds(x: FloatArray, y: FloatArray, sharpness: float = SHARPNESS) -> FloatArray:
    """Return the seconds of two activities at the same time: a little more than the longer one.

    It is ``(x^q + y^q)^(1/q)`` without overflow, with ``sharpness`` as q.
    """
    larger = np.maximum(np.maximum(x, y), 1e-30)
    ratio = np.minimum(x, y) / larger
    total: FloatArray = larger * (1.0 + ratio**sharpness) ** (1.0 / sharpness)
    return total

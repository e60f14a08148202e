"""The compiled form of a profile: a flat array of numbers and one kernel that reads it.

Two layouts cover all kinds. LINEAR is the formula of C1. GRID adds four piecewise (bi)linear parts,

    T(b, c, p, a) = dense(b + p) + decode(b, c / b) + prefill(p, a / p) - overlap [b > 0 and p > 0]

with dense and overlap 0 for a table of whole iterations (where a mixed iteration reads the weights
once although both parts hold them), and overlap 0 for a sum over operators. With ``mixed`` > 0 an
iteration that does both takes mixed * prefill(p + b, a / p) instead (splitwise-sim's rule). Beyond
the last knot a part goes on with its last slope, before the first with its first value; ``inside``
says which iterations do that.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from simulation.compiled import cached_kernel, kernel
from simulation.errors import SimulationError

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

LINEAR, GRID = 0, 1
"""First number of ``Curve.values``."""

# LINEAR: kind, alpha, beta, gamma, delta, most decodes and most prefill tokens of the fitted rows.
# GRID: kind, overlap, mixed, then for each of the three parts the offset of its x knots, their
# number, the number of its y knots (1: the part does not depend on y), then per part its x knots,
# y knots, values in row-major order, and the least and the largest y measured at each x knot.
HEADER = 3 + 3 * 3
DENSE, DECODE, PREFILL = 3, 6, 9  # where a part's three header numbers stand
ANY = 1e300  # a limit that is none


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """Seconds of an iteration as numbers; read only, one dimension."""

    values: FloatArray

    def __post_init__(self) -> None:
        values = np.ascontiguousarray(self.values, dtype=np.float64)
        if not np.isfinite(values[1:]).all():
            raise SimulationError("A performance curve must consist of finite numbers.")
        values.setflags(write=False)
        object.__setattr__(self, "values", values)

    @property
    def kind(self) -> int:
        return int(self.values[0])


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Seconds on knots: ``x`` shape ``[n]`` and ``y`` shape ``[m]`` ascending, ``seconds[n, m]``.

    dense: x tokens b + p, one y. decode: x sequences b, y mean context c / b. prefill: x tokens p,
    y keys per token a / p. ``low`` and ``high``, shape ``[n]``: the y between which there are
    measurements at each x; from the first to the last y knot where they are not given.
    """

    x: FloatArray
    y: FloatArray
    seconds: FloatArray
    low: FloatArray = field(default_factory=lambda: np.zeros(0))
    high: FloatArray = field(default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        if self.seconds.shape != (self.x.size, self.y.size) or not self.seconds.size:
            raise SimulationError("A part of a curve needs seconds of shape [x knots, y knots].")
        if (np.diff(self.x) <= 0).any() or (np.diff(self.y) <= 0).any():
            raise SimulationError("The knots of a curve must ascend.")
        if (self.seconds < 0).any():
            raise SimulationError("An iteration cannot take less than no time.")
        ends = (self.y[0], self.y[-1]) if self.y.size > 1 else (-ANY, ANY)
        for name, end in zip(("low", "high"), ends, strict=True):
            if not getattr(self, name).size:
                object.__setattr__(self, name, np.full(self.x.size, end))


NOTHING = Part(np.zeros(1), np.zeros(1), np.zeros((1, 1)))


def linear(
    alpha_s: float,
    beta_s: float,
    gamma_s: float,
    delta_s: float,
    *,
    decodes: float = np.inf,
    prefill_tokens: float = np.inf,
) -> Curve:
    """max(alpha if b, gamma if p) + beta b + delta p; fitted up to the last two arguments."""
    limits = [min(decodes, 1e18), min(prefill_tokens, 1e18)]
    return Curve(np.array([LINEAR, alpha_s, beta_s, gamma_s, delta_s, *limits]))


def grid(
    *,
    dense: Part = NOTHING,
    decode: Part = NOTHING,
    prefill: Part = NOTHING,
    overlap_s: float = 0.0,
    mixed: float = 0.0,
) -> Curve:
    """A curve from its parts; ``overlap_s`` at most what the cheapest mixed iteration takes."""
    header = np.zeros(HEADER)
    header[:3] = GRID, overlap_s, mixed
    body: list[FloatArray] = []
    offset = HEADER
    for place, part in ((DENSE, dense), (DECODE, decode), (PREFILL, prefill)):
        header[place : place + 3] = offset, part.x.size, part.y.size
        body += [part.x, part.y, part.seconds.ravel(), part.low, part.high]
        offset = HEADER + sum(array.size for array in body)
    return Curve(np.concatenate([header, *body]))


@kernel
def _segment(values: Any, first: int, count: int, at: float) -> int:
    """Index of the knot that begins the segment to read at ``at``: 0 to count - 2."""
    low, high = 0, count - 1
    while high - low > 1:
        middle = (low + high) // 2
        if values[first + middle] <= at:
            low = middle
        else:
            high = middle
    return low


@kernel
def _part(values: Any, place: int, x: float, y: float) -> float:
    first, n, m = int(values[place]), int(values[place + 1]), int(values[place + 2])
    table = first + n + m
    if n == 1:
        i, u = 0, 0.0
    else:
        i = _segment(values, first, n, x)
        u = (x - values[first + i]) / (values[first + i + 1] - values[first + i])
        u = max(u, 0.0)
    if m == 1:
        j, v = 0, 0.0
    else:
        j = _segment(values, first + n, m, y)
        v = (y - values[first + n + j]) / (values[first + n + j + 1] - values[first + n + j])
        v = max(v, 0.0)
    low = values[table + i * m + j]
    if v > 0.0:
        low += v * (values[table + i * m + j + 1] - low)
    if u == 0.0:
        return float(low)
    high = values[table + (i + 1) * m + j]
    if v > 0.0:
        high += v * (values[table + (i + 1) * m + j + 1] - high)
    return float(low + u * (high - low))


@kernel
def iteration_seconds(values: Any, b: float, c: float, p: float, a: float) -> float:
    """Seconds of one iteration from ``Curve.values``; see the module's docstring."""
    if values[0] == LINEAR:
        base = values[1] if b > 0 else 0.0
        if p > 0:
            base = max(base, values[3])
        return float(base + values[2] * b + values[4] * p)
    total = 0.0
    if b > 0 and p > 0 and values[2] > 0:
        return float(values[2] * _part(values, PREFILL, p + b, a / p))
    if b + p > 0:
        total += _part(values, DENSE, b + p, 0.0)
    if b > 0:
        total += _part(values, DECODE, b, c / b)
    if p > 0:
        total += _part(values, PREFILL, p, a / p)
        if b > 0:
            total -= values[1]
    return float(total)


@cached_kernel
def _evaluate(values: Any, b: Any, c: Any, p: Any, a: Any, out: Any) -> None:
    for i in range(out.size):
        out[i] = iteration_seconds(values, b[i], c[i], p[i], a[i])


def evaluate(
    curve: Curve, b: npt.ArrayLike, c: npt.ArrayLike, p: npt.ArrayLike, a: npt.ArrayLike
) -> FloatArray:
    """Seconds of many iterations, broadcast over the four arrays."""
    shaped = np.broadcast_arrays(*(np.asarray(x, np.float64) for x in (b, c, p, a)))
    flat = [np.ascontiguousarray(x).ravel() for x in shaped]
    out = np.empty(flat[0].size)
    _evaluate(curve.values, *flat, out)
    return out.reshape(shaped[0].shape)


def inside(
    curve: Curve, b: npt.ArrayLike, c: npt.ArrayLike, p: npt.ArrayLike, a: npt.ArrayLike
) -> BoolArray:
    """Whether each iteration lies inside the knots (GRID) or the fitted rows (LINEAR)."""
    shaped = np.broadcast_arrays(*(np.asarray(x, np.float64) for x in (b, c, p, a)))
    decodes, context, prefill, pairs = shaped
    values = curve.values
    if curve.kind == LINEAR:
        return np.asarray((decodes <= values[5]) & (prefill <= values[6]))
    with np.errstate(invalid="ignore", divide="ignore"):
        keys = [(decodes + prefill, 0.0), (decodes, context / decodes), (prefill, pairs / prefill)]
    result = np.ones(decodes.shape, np.bool_)
    for place, (x, y) in zip((DENSE, DECODE, PREFILL), keys, strict=True):
        first, n, m = (int(v) for v in values[place : place + 3])
        if n * m == 1:
            continue
        xs, after = values[first : first + n], first + n + m + n * m
        low, high = values[after : after + n], values[after + n : after + 2 * n]
        good = (x >= xs[0]) & (x <= xs[-1])
        good &= (y >= np.interp(x, xs, low)) & (y <= np.interp(x, xs, high))
        result &= good | (x == 0)
    return result

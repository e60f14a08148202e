"""Describe the arrivals at an instance or a service: lengths, rate and burstiness."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from simulation.arrays import FloatArray, Int32Array
from simulation.arrival_pattern import ArrivalPattern
from simulation.errors import SimulationError
from simulation.trace import CachedTokens

# How requests arrive: the squared coefficient of variation of gaps, or the pattern of a trace.
Burstiness = float | ArrivalPattern

POINTS = 144  # points for the length sample in the closed forms
WINDOW_S = 300.0  # length of a window in which burstiness is measured
LEAST_REQUESTS = 20  # requests of a window that counts


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """Requests/s with lengths drawn jointly from a sample of (input, output) tokens.

    ``cached`` prompt tokens need no prefill, and occupy KV memory like all others.
    ``burstiness`` is the squared coefficient of variation of the gaps between arrivals. It is 1 for
    Poisson, 0 for a clock, and above 1 for bursts. Raises SimulationError on an empty sample.
    """

    isl: Int32Array
    osl: Int32Array
    rate: float = 0.0
    burstiness: float = 1.0
    cached: CachedTokens | None = None
    facts: LengthFacts = field(init=False, repr=False)

    def __post_init__(self) -> None:
        isl, osl = (np.asarray(column, np.int32) for column in (self.isl, self.osl))
        if not len(isl) or len(isl) != len(osl) or isl.min() < 1 or osl.min() < 1:
            raise SimulationError(
                "A workload needs a sample of lengths, as many inputs as outputs, each at least 1."
            )
        if not self.rate >= 0 or not self.burstiness >= 0:
            raise SimulationError("A workload needs a rate and a burstiness of at least 0.")
        object.__setattr__(self, "isl", isl)
        object.__setattr__(self, "osl", osl)
        computed = isl
        if self.cached is not None:
            # The last token of a prompt is computed even if all of it is cached.
            computed = np.maximum(isl - self.cached.tokens, 1)
        object.__setattr__(self, "facts", _length_facts(isl, osl, computed))

    def at(self, rate: float) -> Workload:
        """Return the same requests at another rate, without reading the sample again."""
        out = object.__new__(Workload)
        for name in ("isl", "osl", "burstiness", "cached", "facts"):
            object.__setattr__(out, name, getattr(self, name))
        object.__setattr__(out, "rate", rate)
        return out


@dataclass(frozen=True, slots=True, eq=False)
class LengthFacts:
    """Statistics of a length sample that the closed forms need."""

    mean_isl: float
    mean_osl: float
    mean_prefill: float  # input tokens without the cached ones
    isl_points: FloatArray  # means of equal parts of the sorted input tokens, at most POINTS
    prefill_points: FloatArray  # the same of the input tokens without the cached ones
    osl_points: FloatArray  # the same of the output tokens
    decode_context: float  # mean KV tokens of a decoding sequence, weighted by decode time
    keys: float  # mean keys before a computed token: without a cache half the length of its prompt
    osl_scv: float  # squared coefficient of variation
    osl_overlap: float  # integral of (1 - F)^2 over the mean (birth_death.solve_occupancy)


def _length_facts(isl: Int32Array, osl: Int32Array, computed: Int32Array) -> LengthFacts:
    """Return the statistics of a length sample; ``computed`` are the tokens that need prefill."""
    inputs, outputs = isl.astype(np.float64), osl.astype(np.float64)
    prefill = computed.astype(np.float64)
    gaps = outputs - 1.0
    context = inputs.mean() + 1.0  # if no request decodes: the context after the first token
    if gaps.any():
        context = (gaps * (inputs + outputs / 2.0)).sum() / gaps.sum()
    ordered = np.sort(outputs)
    survival = 1.0 - np.arange(len(ordered)) / len(ordered)  # 1 - F just below each value
    # Keys that all computed tokens of a prompt attend to: those of the whole, less the cached ones.
    keys = (inputs * inputs - (inputs - prefill) ** 2) / 2.0
    return LengthFacts(
        mean_isl=float(inputs.mean()),
        mean_osl=float(outputs.mean()),
        mean_prefill=float(prefill.mean()),
        isl_points=_part_means(isl),
        prefill_points=_part_means(computed),
        osl_points=_part_means(osl),
        decode_context=float(context),
        keys=float(keys.sum() / prefill.sum()),
        osl_scv=float(outputs.var() / outputs.mean() ** 2),
        # mean of the shorter of two outputs, over the mean output
        osl_overlap=float((survival**2 * np.diff(ordered, prepend=0.0)).sum() / outputs.mean()),
    )


def burstiness_of(arrival_s: FloatArray) -> float:
    """Return the squared coefficient of variation of the gaps; 1 for fewer than three arrivals."""
    gaps = np.diff(arrival_s)
    mean = float(gaps.mean()) if len(gaps) > 1 else 0.0
    return float(gaps.var() / mean**2) if mean > 0 else 1.0


def unit_arrivals(n: int, burstiness: Burstiness, rng: np.random.Generator) -> FloatArray:
    """Return ``n`` random arrival times, at one per second on average.

    ``burstiness`` 1 is Poisson arrivals, 0 equal gaps. Another number gives gamma-distributed gaps
    with that squared coefficient of variation. A pattern is resampled.
    """
    if isinstance(burstiness, ArrivalPattern):
        return burstiness.unit_arrivals(n, rng)
    if burstiness == 1.0:
        gaps = rng.exponential(size=n)
    elif burstiness == 0.0:
        gaps = np.ones(n)
    else:
        gaps = rng.gamma(1.0 / burstiness, burstiness, n)
    return np.cumsum(gaps)


def _part_means(values: Int32Array) -> FloatArray:
    """Return the means of equal parts of the sorted ``values``, ``[points]``.

    A value on an edge is divided between two parts, so the overall mean is exact.
    """
    below = np.append(0.0, np.cumsum(np.sort(values), dtype=np.float64))
    edges = np.linspace(0.0, len(values), min(POINTS, len(values)) + 1)
    return np.asarray(
        np.diff(np.interp(edges, np.arange(len(below)), below)) / np.diff(edges), np.float64
    )


def local_burstiness(arrival_s: FloatArray) -> float:
    """Return ``burstiness_of`` within windows of time, so that daily cycles do not count as bursts.

    The result is the mean over windows, weighted by requests. Windows with fewer than
    LEAST_REQUESTS requests are ignored. If no window is left, the result is 1.
    """
    if not len(arrival_s):
        return 1.0
    window = np.floor(arrival_s / WINDOW_S).astype(np.int64)
    edges = np.flatnonzero(np.diff(window, prepend=window[0] - 1))
    total = weight = 0.0
    for part in np.split(arrival_s, edges[1:]):
        if len(part) >= LEAST_REQUESTS:
            total += len(part) * burstiness_of(part)
            weight += len(part)
    return total / weight if weight else 1.0

"""State the expected error of a size, measured against longer simulations.

See docs/sizing.md. bench/sizing.py writes these figures.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass

BASIS = "180 random cases, each compared with 100,000 requests of other seeds"
LATENCIES = "the tier's percentiles of TTFT and TPOT, by closed forms"
LATENCY_BASIS = "100 random cases of bin/bench sizing (seeds 3, 4), against 40,000 requests each"
BIAS_BASIS = "138 loads of 46 random cases (seeds 71 and 72), 30,000 requests each"


@dataclass(frozen=True, slots=True)
class SizeError:
    """Median and 95th percentile of a size's absolute relative errors, as fractions."""

    quantity: str
    median: float
    p95: float
    loads: str  # range of loads, as a share of the saturated rate
    basis: str


@dataclass(frozen=True, slots=True)
class Bias:
    """Median signed error of the 95th percentiles of closed forms.

    A negative value means that requests wait longer than the closed forms predict.
    """

    ttft: float
    tbt: float
    loads: str
    basis: str = BIAS_BASIS


SIMULATION = SizeError("largest rate, by simulation", 0.009, 0.039, "all", BASIS)
# Latencies by closed forms, by load: upper end of the loads, their range in words, (median, p95) of
# the error, and bias of (TTFT, TPOT).
CLOSED_FORMS = (
    (0.5, "up to 50%", (0.019, 0.086), (-0.015, -0.007)),
    (0.8, "50% to 80%", (0.044, 0.132), (-0.026, -0.038)),
    (math.inf, "above 80%", (0.065, 0.347), (-0.082, -0.049)),
)


def latency_errors(load: float) -> tuple[SizeError, Bias]:
    """Return the expected error and bias of latencies by closed forms at ``load``.

    ``load`` is a share of the saturated rate.
    """
    highest_loads = [highest_load for highest_load, _, _, _ in CLOSED_FORMS]
    row = bisect_left(highest_loads, load)  # the first row up to a load that is high enough
    _, loads, (median, p95), (ttft, tbt) = CLOSED_FORMS[row]
    return SizeError(LATENCIES, median, p95, loads, LATENCY_BASIS), Bias(ttft, tbt, loads)

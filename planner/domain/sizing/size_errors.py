"""State the expected error of a size, measured against longer simulations.

See docs/sizing.md. bench/sizing.py writes these figures.
"""

import math
from dataclasses import dataclass

BASIS = "bin/bench sizing, 180 random cases, against 100,000 requests of other seeds"


@dataclass(frozen=True, slots=True)
class SizeError:
    """Median and 95th percentile of a size's absolute relative errors, as fractions."""

    quantity: str
    median: float
    p95: float
    loads: str  # range of loads, as a share of the saturated rate
    basis: str = BASIS


SIMULATION = SizeError("largest rate, by simulation", 0.009, 0.039, "all")
RATES = "largest rate, by closed forms"
CLOSED = "100 random cases of bin/bench sizing (seeds 3, 4), against sizes by simulation"
RATE = (  # closed forms: upper end of the range of loads, error
    (0.5, SizeError(RATES, 0.058, 0.157, "up to 50%", CLOSED)),
    (0.8, SizeError(RATES, 0.038, 0.120, "50% to 80%", CLOSED)),
    (math.inf, SizeError(RATES, 0.034, 0.067, "above 80%", CLOSED)),
)
LATE = "the tier's percentiles of TTFT and TPOT, by closed forms"
LATER = "100 random cases of bin/bench sizing (seeds 3, 4), against 40,000 requests each"
LATENCY = (
    (0.5, SizeError(LATE, 0.019, 0.086, "up to 50%", LATER)),
    (0.8, SizeError(LATE, 0.044, 0.132, "50% to 80%", LATER)),
    (math.inf, SizeError(LATE, 0.065, 0.347, "above 80%", LATER)),
)


BIAS_BASIS = "138 loads of 46 random cases (seeds 71 and 72), 30,000 requests each"


@dataclass(frozen=True, slots=True)
class Bias:
    """Median signed error of the 95th percentiles of closed forms.

    A negative value means that requests wait longer than the closed forms predict.
    """

    ttft: float
    tbt: float
    loads: str
    basis: str = BIAS_BASIS


BIAS = (
    (0.5, Bias(-0.015, -0.007, "up to 50%")),
    (0.8, Bias(-0.026, -0.038, "50% to 80%")),
    (math.inf, Bias(-0.082, -0.049, "above 80%")),
)


def bias(load: float) -> Bias:
    """Return the bias of latencies by closed forms at ``load``, a share of the saturated rate."""
    return next(errors for limit, errors in BIAS if load <= limit)


def expected(what: str, load: float) -> SizeError:
    """Return the expected error of ``what`` at ``load``, a share of the saturated rate.

    ``what`` is "simulation", "rate" or "latency". The last two are by closed forms.
    """
    if what == "simulation":
        return SIMULATION
    rows = RATE if what == "rate" else LATENCY
    return next(error for limit, error in rows if load <= limit)

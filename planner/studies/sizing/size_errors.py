"""How far sizes have been off against longer simulations (docs/sizing.md; bench/sizing.py writes
these figures): what stands beside a size."""

from __future__ import annotations

from dataclasses import dataclass

BASIS = "bin/bench sizing, 180 random cases, against 100,000 requests of other seeds"


@dataclass(frozen=True, slots=True)
class SizeError:
    """Median and 95th percentile of the absolute relative errors."""

    quantity: str
    median: float
    p95: float
    loads: str  # of what the replica could serve
    basis: str = BASIS


SIMULATION = SizeError("largest rate, by simulation", 0.009, 0.039, "all")
RATE = (  # by the closed forms: up to which load, error
    (0.5, SizeError("largest rate, by closed forms", 0.090, 0.513, "up to 50%")),
    (0.8, SizeError("largest rate, by closed forms", 0.071, 0.156, "50% to 80%")),
    (9.9, SizeError("largest rate, by closed forms", 0.045, 0.100, "above 80%")),
)
LATE = "the tier's percentiles of TTFT and TBT, by closed forms"
LATENCY = (
    (0.5, SizeError(LATE, 0.033, 0.183, "up to 50%")),
    (0.8, SizeError(LATE, 0.091, 0.346, "50% to 80%")),
    (9.9, SizeError(LATE, 0.116, 0.383, "above 80%")),
)


LOW_BASIS = "64 loads of 16 random cases of bin/bench sizing, against 30,000 requests each"


@dataclass(frozen=True, slots=True)
class Bias:
    """By how much the 95th percentiles of closed forms are off on average (median, signed):
    negative, as they are at every load, says that requests wait longer than they say."""

    ttft: float
    tbt: float
    loads: str
    basis: str = LOW_BASIS


BIAS = (
    (0.5, Bias(-0.06, -0.02, "up to 50%")),
    (0.8, Bias(-0.085, -0.07, "50% to 80%")),
    (9.9, Bias(-0.16, -0.07, "above 80%")),
)


def bias(load: float) -> Bias:
    """Of latencies by closed forms at a share of saturation."""
    return next(one for limit, one in BIAS if load <= limit)


def bias_in_words() -> str:
    said = ", ".join(f"{-one.ttft:.0%} and {-one.tbt:.0%} {one.loads}" for _, one in BIAS)
    return (
        f"closed forms are as a rule too fast: p95 of TTFT and TBT low by {said} of saturation "
        "(medians)"
    )


def expected(what: str, load: float) -> SizeError:
    """The error to expect of ``what`` (simulation, rate or latency) at a share of saturation."""
    if what == "simulation":
        return SIMULATION
    rows = RATE if what == "rate" else LATENCY
    return next(error for limit, error in rows if load <= limit)

"""Requests drawn from binned demand and from distributions of their lengths, with a seed."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from simulation.arrays import FloatArray, Int32Array, IntArray
from simulation.errors import SimulationError

MOST_TOKENS = 1_000_000  # of one request, if the caller sets no limit
CLUSTER_S = 1.0  # time over which the requests of a cluster arrive
# Counts per second show only this share of the dispersion beyond 1, if clusters last CLUSTER_S: the
# overlap of two uniform offsets, the integral of (1 - |x|)^2 from -1 to 1.
SEEN_PER_S = 2.0 / 3.0


class Lengths(Protocol):
    """Protocol of a source of input and output lengths."""

    def sample(self, n: int, rng: np.random.Generator) -> tuple[Int32Array, Int32Array]:
        """Return ``n`` pairs of (input tokens, output tokens), each at least 1."""
        ...


@dataclass(frozen=True, slots=True)
class LengthDistribution:
    """A log-normal number of tokens with a given mean and coefficient of variation.

    Draws are rounded and clipped to ``[minimum, maximum]``. The clipped upper tail lowers the mean
    a little below ``mean``.
    """

    mean: float
    cv: float
    minimum: int = 1
    maximum: int = MOST_TOKENS

    def __post_init__(self) -> None:
        if not self.mean > 0 or not self.cv >= 0:
            raise SimulationError("A length distribution needs mean > 0 and cv >= 0.")
        if not 1 <= self.minimum <= self.maximum:
            raise SimulationError("A length distribution needs 1 <= minimum <= maximum.")

    def sample(self, n: int, rng: np.random.Generator) -> Int32Array:
        """Return ``n`` lengths in tokens."""
        variance = np.log1p(self.cv**2)  # of the logarithm
        drawn = rng.lognormal(np.log(self.mean) - variance / 2.0, np.sqrt(variance), n)
        return np.clip(np.rint(drawn), self.minimum, self.maximum).astype(np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class SampledLength:
    """Lengths drawn from ``values [points]``, scaled so that their mean is ``mean``."""

    values: FloatArray
    mean: float

    @property
    def cv(self) -> float:
        return float(self.values.std() / self.values.mean())

    def sample(self, n: int, rng: np.random.Generator) -> Int32Array:
        """Return ``n`` lengths in tokens, each at least 1."""
        drawn: FloatArray = self.values[rng.integers(len(self.values), size=n)]
        stretched: FloatArray = np.rint(drawn * (self.mean / self.values.mean()))
        return np.clip(stretched, 1, MOST_TOKENS).astype(np.int32)


@dataclass(frozen=True, slots=True)
class IndependentLengths:
    """Input and output lengths drawn independently."""

    input: LengthDistribution | SampledLength
    output: LengthDistribution | SampledLength

    def sample(self, n: int, rng: np.random.Generator) -> tuple[Int32Array, Int32Array]:
        return self.input.sample(n, rng), self.output.sample(n, rng)


@dataclass(frozen=True, slots=True, eq=False)
class EmpiricalLengths:
    """Observed pairs of lengths, drawn with replacement, so that correlations stay."""

    input_tokens: Int32Array
    output_tokens: Int32Array

    def __post_init__(self) -> None:
        if not len(self.input_tokens) or len(self.input_tokens) != len(self.output_tokens):
            raise SimulationError("Empirical lengths need as many inputs as outputs, at least one.")

    def sample(self, n: int, rng: np.random.Generator) -> tuple[Int32Array, Int32Array]:
        """Return input and output lengths of ``n`` requests drawn with replacement."""
        rows = rng.integers(len(self.input_tokens), size=n)
        isl, osl = np.asarray(self.input_tokens)[rows], np.asarray(self.output_tokens)[rows]
        return np.maximum(isl, 1).astype(np.int32), np.maximum(osl, 1).astype(np.int32)


def requests_from_bins(
    counts: npt.ArrayLike,
    bin_s: float,
    start_s: float,
    lengths: Lengths,
    rng: np.random.Generator,
    totals: tuple[npt.ArrayLike | None, npt.ArrayLike | None] = (None, None),
    dispersion: float = 1.0,
) -> tuple[FloatArray, Int32Array, Int32Array]:
    """Return random ``(arrival_s, input_tokens, output_tokens)`` with ``counts`` requests per bin.

    For the arrivals see ``arrivals_from_bins``. ``totals`` are the input and output tokens per bin,
    if known; NaN: unknown in a bin. Drawn lengths are then scaled so that they sum to the total of
    each bin exactly, each at least 1.

    Raises ``SimulationError`` for invalid counts, or totals below one token per request.
    """
    arrival, _, per_bin = arrivals_from_bins(counts, bin_s, start_s, rng, dispersion)
    isl, osl = lengths.sample(len(arrival), rng)
    inputs, outputs = totals
    if inputs is not None:
        isl = _scale_to_totals(isl, per_bin, np.asarray(inputs, np.float64), "input")
    if outputs is not None:
        osl = _scale_to_totals(osl, per_bin, np.asarray(outputs, np.float64), "output")
    return arrival, isl, osl


def arrivals_from_bins(
    counts: npt.ArrayLike,
    bin_s: float,
    start_s: float,
    rng: np.random.Generator,
    dispersion: float = 1.0,
) -> tuple[FloatArray, IntArray, IntArray]:
    """Return random arrival times in order, the bin of each, and the requests per bin.

    ``counts [bins]`` are whole numbers; NaN is a gap without requests. Bin ``i`` covers
    ``[start_s + i * bin_s, start_s + (i + 1) * bin_s)``.

    ``dispersion`` is the variance over the mean of the requests per second within a bin, in bins
    of many seconds. At 1, arrivals are uniform: a Poisson stream given its count. Above 1, requests
    arrive in clusters of a geometric size, spread over ``CLUSTER_S`` (Neyman and Scott 1958).

    Raises ``SimulationError`` for invalid counts or a dispersion below 1.
    """
    known = np.nan_to_num(np.asarray(counts, np.float64), nan=0.0, posinf=np.inf)
    if not (np.isfinite(known) & (known >= 0) & (known == np.floor(known))).all():
        raise SimulationError(
            "Counts per bin must be whole numbers of at least 0, or NaN for gaps."
        )
    if not bin_s > 0:
        raise SimulationError("bin_s must be positive.")
    per_bin = known.astype(np.int64)
    bins = np.repeat(np.arange(len(per_bin)), per_bin)
    if dispersion == 1.0:
        position = rng.random(len(bins))
    else:
        position = _clustered_positions(bins, bin_s, dispersion, rng)
    arrival = start_s + (bins + position) * bin_s
    # Rounding may move the last arrival of a bin to the start of the next one.
    arrival = np.minimum(arrival, np.nextafter(start_s + (bins + 1) * bin_s, -np.inf))
    arrival.sort()
    return arrival, bins, per_bin


def _clustered_positions(
    bins: IntArray, bin_s: float, dispersion: float, rng: np.random.Generator
) -> FloatArray:
    """Return the position of each request in its bin, from 0 to 1, for clustered arrivals.

    ``bins [requests]`` is the bin of each. See ``arrivals_from_bins``.
    """
    if not dispersion >= 1.0:
        raise SimulationError("dispersion must be at least 1.")
    # Cluster sizes are geometric with p_last, the probability that a request is the last. Over
    # times much longer than a cluster, the dispersion is E[size^2] / E[size] = 2 / p_last - 1.
    p_last = 2.0 / (2.0 + (dispersion - 1.0) / SEEN_PER_S)
    n = len(bins)
    is_last = rng.random(n) < p_last
    is_first = np.ones(n, np.bool_)
    is_first[1:] = is_last[:-1] | (np.diff(bins) != 0)
    cluster = np.cumsum(is_first) - 1
    cluster_begin = rng.random(int(is_first.sum()))  # of each cluster in its bin
    offset = rng.random(n) * (CLUSTER_S / bin_s)
    return np.asarray((cluster_begin[cluster] + offset) % 1.0, np.float64)


def _scale_to_totals(
    lengths: Int32Array, counts: IntArray, totals: FloatArray, what: str
) -> Int32Array:
    """Return lengths in proportion to ``lengths [requests]`` that sum to the total of each bin.

    Each is at least 1. Requests are in the order of bins. ``counts [bins]`` are the requests of
    each, and ``totals [bins]`` their tokens. Lengths of a bin with an unknown total (NaN) stay.
    ``what`` is "input" or "output", for messages.
    """
    if totals.shape != counts.shape:
        raise SimulationError(f"Give one {what} token total per bin.")
    tokens = np.rint(np.nan_to_num(totals, nan=-1.0)).astype(np.int64)
    has_total = ~np.isnan(totals)
    short = np.flatnonzero(has_total & (tokens < counts))
    if len(short):
        i = short[0]
        raise SimulationError(
            f"Bin {i} has {counts[i]} requests but {tokens[i]} {what} tokens; every request needs "
            "at least one: correct the total, or leave it out (NaN)."
        )
    # Tokens beyond the first of each request; never all zero
    weight = np.add(lengths - 1, 1e-9)
    scaled = 1 + _shares_of_bins(weight, counts, tokens - counts)
    return np.where(np.repeat(has_total, counts), scaled, lengths).astype(np.int32)


def _shares_of_bins(weight: FloatArray, counts: IntArray, tokens: IntArray) -> IntArray:
    """Return whole numbers in proportion to ``weight [requests]`` that sum to ``tokens [bins]``.

    ``counts [bins]`` are the requests of each bin.
    """
    # Round the running sum within each bin. Its differences are whole and add up to the total.
    has_requests = counts > 0
    bin_end = np.cumsum(counts)
    bin_start = bin_end - counts
    weight_of_bin = np.ones(len(counts))
    if has_requests.any():
        weight_of_bin[has_requests] = np.add.reduceat(weight, bin_start[has_requests])
    running_weight = np.cumsum(weight)
    sum_before_bin = np.concatenate([[0.0], running_weight])[bin_start]
    weight_in_bin = running_weight - np.repeat(sum_before_bin, counts)
    running_share = weight_in_bin / np.repeat(weight_of_bin, counts)
    bin_tokens = np.repeat(tokens, counts)
    running_tokens = np.rint(np.clip(running_share, 0.0, 1.0) * bin_tokens).astype(np.int64)
    last_request = bin_end[has_requests] - 1
    running_tokens[last_request] = bin_tokens[last_request]
    shares = np.diff(running_tokens, prepend=0)
    shares[bin_start[has_requests]] = running_tokens[bin_start[has_requests]]
    return np.asarray(shares)

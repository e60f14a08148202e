"""Use a series of a demand file as a source of traffic: amounts per bin, requests when needed."""

from dataclasses import dataclass, replace

import numpy as np

from forecasting.demand import SeriesKey
from planner.domain.traffic.demand import Demand
from planner.domain.traffic.lengths import cached_part
from planner.inputs.ingest.store import DemandColumns
from planner.inputs.scenario.schema import Launch, Lengths
from simulation.arrays import FloatArray, Int32Array, ratio
from simulation.synthesis import (
    IndependentLengths,
    LengthDistribution,
    SampledLength,
    arrivals_from_bins,
    requests_from_bins,
)
from simulation.trace import Trace

# Coefficient of variation of lengths around a file's own tokens per request (assumed).
FILE_CV = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class BinnedSource:
    """Traffic known as counts per bin, all of one model.

    It is one series of a demand file, or a launch: traffic that the scenario describes, for which
    counts were sampled. ``weights [regions, tiers]`` are the requests of each region and tier for
    one request in the file: their share times the scenario's ``scale``. If the file does not count
    tokens, ``input_lengths`` and ``output_lengths`` of the scenario give them. If it does, only the
    variation of those lengths is used.
    """

    columns: DemandColumns
    model: int  # index of the model
    weights: FloatArray
    input_lengths: Lengths | None
    output_lengths: Lengths | None
    launch: Launch | None = None  # the description it was drawn from; None: read from a file
    dispersion: float = 1.0  # variance over mean of requests per second within a bin
    sampling: float = 0.0  # variance over mean of the number of requests in a sample; 0: no sample
    stated_cached_share: float | None = None  # stated in the scenario; None: as the file counts it

    @property
    def start_s(self) -> float:
        """Return the start of the first bin in epoch seconds."""
        return self.columns.start_s

    @property
    def end_s(self) -> float:
        """Return the end of the last bin in epoch seconds."""
        return self.columns.start_s + len(self.columns.requests) * self.columns.bin_s

    @property
    def count(self) -> float:
        """Return the number of requests that the source adds to the traffic, in all bins."""
        return float(np.nansum(self.requests()) * self.weights.sum())

    def requests(self) -> FloatArray:
        """Return the requests of the file per bin, ``[bins]``, without the ``weights``.

        If the file counts only tokens, divide them by the scenario's mean lengths. NaN marks
        missing bins.
        """
        columns = self.columns
        inputs, outputs = self.input_lengths, self.output_lengths
        if not np.isnan(columns.requests).all():
            return columns.requests
        if columns.input_tokens is not None and inputs:
            return np.asarray(columns.input_tokens / inputs.mean)
        if columns.output_tokens is not None and outputs:
            return np.asarray(columns.output_tokens / outputs.mean)
        if columns.total_tokens is not None and inputs and outputs:
            return np.asarray(columns.total_tokens / (inputs.mean + outputs.mean))
        return columns.requests

    def tokens(self) -> tuple[FloatArray, FloatArray]:
        """Return (input tokens, output tokens) of the file per bin, each ``[bins]``.

        Tokens that the file does not count are its requests times the scenario's mean lengths.
        """
        requests = self.requests()

        def counted_or_mean(counted: FloatArray | None, stated: Lengths | None) -> FloatArray:
            """Return the counted tokens, or else requests times the stated mean; NaN if neither."""
            if counted is not None:
                return counted
            return requests * (stated.mean if stated else np.nan)

        inputs = counted_or_mean(self.columns.input_tokens, self.input_lengths)
        outputs = counted_or_mean(self.columns.output_tokens, self.output_lengths)
        # A request without an answer, such as an embedding, counts as one with an answer of one
        # token, which the prefill makes.
        answers = np.where(np.isnan(requests), outputs, np.maximum(outputs, requests))
        return np.asarray(inputs), np.asarray(answers, np.float64)

    @property
    def cached_share(self) -> float:
        """Return the share of input tokens that a prefix cache saves; 0 if unknown."""
        if self.stated_cached_share is not None:
            return self.stated_cached_share
        cached, inputs = self.columns.cached_tokens, self.columns.input_tokens
        if cached is None or inputs is None:
            return 0.0
        known = ~np.isnan(cached) & ~np.isnan(inputs)
        total = float(inputs[known].sum())
        return min(1.0, float(cached[known].sum()) / total) if total > 0 else 0.0

    def lengths(self, bins: slice = slice(None)) -> IndependentLengths:
        """Return distributions of prompt and answer lengths, with the means in the slice ``bins``.

        Their shape is that of the file's sample of lengths, if it has one and the scenario states
        no lengths. Otherwise they are log-normal.
        """
        columns, requests = self.columns, self.requests()[bins]

        def distribution_around(
            tokens: FloatArray, stated: Lengths | None, sample: FloatArray | None
        ) -> LengthDistribution | SampledLength:
            """Return a distribution of lengths with the mean of ``tokens [bins]`` per request."""
            mean = _mean_per_request(tokens[bins], requests)
            if sample is not None and stated is None:
                return SampledLength(sample, mean)
            return LengthDistribution(mean, stated.cv if stated else FILE_CV)

        inputs, outputs = self.tokens()
        return IndependentLengths(
            distribution_around(inputs, self.input_lengths, columns.input_lengths),
            distribution_around(outputs, self.output_lengths, columns.output_lengths),
        )

    def demand(self, template: Trace, edge_s: float, bin_s: float, bins: int) -> Demand:
        """Return the source's demand in ``bins`` bins of ``bin_s`` seconds from ``edge_s`` on.

        ``edge_s`` is in epoch s. ``template`` has the scenario's names of models, regions and
        tiers. A bin is a gap (NaN) if any of the source's shorter bins within it is missing.
        """
        region, tier = np.nonzero(self.weights > 0)  # indices of the pairs with traffic
        weight = self.weights[region, tier][:, None]  # [pair, 1], times [bins] below
        model = template.models[self.model]
        requests, (input_tokens, output_tokens) = self.requests(), self.tokens()
        return Demand(
            keys=tuple(
                SeriesKey(model, template.regions[r], template.tiers[t])
                for r, t in zip(region, tier, strict=True)
            ),
            start_s=edge_s,
            bin_s=bin_s,
            requests=weight * self._in_wider_bins(requests, edge_s, bin_s, bins),
            input_tokens=weight * self._in_wider_bins(input_tokens, edge_s, bin_s, bins),
            output_tokens=weight * self._in_wider_bins(output_tokens, edge_s, bin_s, bins),
        )

    def _in_wider_bins(
        self, values: FloatArray, edge_s: float, bin_s: float, bins: int
    ) -> FloatArray:
        """Return the sums of ``values`` over the wider bins of ``demand``, ``[bins]``.

        A wider bin with a missing value is NaN.
        """
        columns = self.columns
        # The wider bin of each value. 1e-9 is more than the rounding error.
        offset = (columns.start_s - edge_s) / bin_s
        wider_bin = np.floor(offset + np.arange(len(values)) * columns.bin_s / bin_s + 1e-9)
        inside = (wider_bin >= 0) & (wider_bin < bins)
        wider_bin, values = wider_bin[inside].astype(np.int64), values[inside]
        total = np.bincount(wider_bin, np.nan_to_num(values), minlength=bins)
        known = np.bincount(wider_bin, ~np.isnan(values), minlength=bins)  # number of values
        return np.where(known >= round(bin_s / columns.bin_s), total, np.nan)

    def expected_requests(self, start_s: float, end_s: float) -> float:
        """Return the expected number of requests in the bins that overlap ``[start_s, end_s)``."""
        counts = self.requests()[self.bins_between(start_s, end_s)]
        return float(np.nansum(counts) * self.weights.sum())

    def bins_between(self, start_s: float, end_s: float, *, whole: bool = False) -> slice:
        """Return the slice of bins that overlap ``[start_s, end_s)`` in epoch seconds.

        With ``whole``, return only bins that lie in it.
        """
        # In bins since the start of the series. 1e-9 is more than the rounding error.
        start = (start_s - self.columns.start_s) / self.columns.bin_s
        end = (end_s - self.columns.start_s) / self.columns.bin_s
        if whole:
            first, stop = np.ceil(start - 1e-9), np.floor(end + 1e-9)
        else:
            first, stop = np.floor(start + 1e-9), np.ceil(end - 1e-9)
        first = max(0, int(first))
        return slice(first, max(first, int(stop)))

    def draw(
        self,
        template: Trace,
        start_s: float,
        end_s: float,
        rng: np.random.Generator,
        parts: int = 1,
    ) -> list[Trace]:
        """Draw the requests that arrive in ``[start_s, end_s)``, one trace per region and tier.

        Times are epoch seconds. ``template`` is an empty trace with the scenario's names. If the
        file counts tokens, the tokens of the requests in a bin sum to that count. With ``parts``
        above 1, the fleet is divided into so many equal parts, and the requests of one are drawn.
        """
        columns, bins = self.columns, self.bins_between(start_s, end_s)
        counts = self.requests()[bins]
        begin_s = columns.start_s + bins.start * columns.bin_s - start_s
        # If each request is kept with probability 1 / parts, the excess of variance over mean
        # above 1 (a Poisson process) shrinks by that factor.
        dispersion = 1.0 + (self.dispersion - 1.0) / parts
        traces = []
        for region, tier in np.argwhere(self.weights > 0):
            # The count of a region and tier is rounded up or down at random: the mean is exact.
            drawn = round_at_random(counts * self.weights[region, tier] / parts, rng)
            tokens = self._tokens_of(drawn, counts, bins)
            arrival, isl, osl = requests_from_bins(
                drawn, columns.bin_s, begin_s, self.lengths(), rng, tokens, dispersion=dispersion
            )
            # The outermost bins can overlap the window only in part: drop arrivals outside it.
            inside = np.flatnonzero((arrival >= 0) & (arrival < end_s - start_s))
            order = inside[np.argsort(arrival[inside], kind="stable")]
            columns_in_order = arrival[order], isl[order], osl[order]
            codes = self.model, int(region), int(tier)
            traces.append(trace_of_one_pool(template, codes, start_s, *columns_in_order))
        if not self.cached_share:
            return traces
        share = self.cached_share
        return [replace(trace, blocks=cached_part(trace.input_tokens, share)) for trace in traces]

    def _tokens_of(
        self, drawn: FloatArray, counts: FloatArray, bins: slice
    ) -> tuple[FloatArray | None, FloatArray | None]:
        """Return (input, output) tokens of ``drawn [bins]`` out of ``counts [bins]`` requests.

        Both arrays are of the slice ``bins``. A bin with half of its requests drawn has half of
        its tokens. None: the file has no such tokens.
        """
        share = ratio(drawn, counts, 0.0)
        inputs, outputs = self.columns.input_tokens, self.columns.output_tokens
        prompts = None if inputs is None else np.round(inputs[bins] * share)
        if outputs is None:
            return prompts, None
        # An answer of one token at least, as in ``tokens``.
        return prompts, np.maximum(np.round(outputs[bins] * share), drawn)

    def arrivals(
        self, start_s: float, end_s: float, rng: np.random.Generator
    ) -> list[tuple[int, int, FloatArray]]:
        """Draw the arrivals, without lengths, in all bins that overlap ``[start_s, end_s)``.

        Return (region index, tier index, arrivals in epoch s) for each region and tier with
        traffic.
        """
        columns, bins = self.columns, self.bins_between(start_s, end_s)
        counts = self.requests()[bins]
        begin_s = columns.start_s + bins.start * columns.bin_s
        drawn = []
        for region, tier in np.argwhere(self.weights > 0):
            integers = round_at_random(counts * self.weights[region, tier], rng)
            arrival, _, _ = arrivals_from_bins(
                integers, columns.bin_s, begin_s, rng, self.dispersion
            )
            drawn.append((int(region), int(tier), arrival))
        return drawn


def trace_of_one_pool(
    template: Trace,
    codes: tuple[int, int, int],
    start_s: float,
    arrival_s: FloatArray,
    isl: Int32Array,
    osl: Int32Array,
) -> Trace:
    """Return requests of one model, region and tier as a trace with the names of ``template``.

    ``codes`` are the indices of model, region and tier. ``arrival_s`` counts from ``start_s``.
    """
    model, region, tier = [np.full(len(arrival_s), code, np.int16) for code in codes]
    names = template.models, template.regions, template.tiers
    return Trace(arrival_s, isl, osl, model, region, tier, *names, start_s)


def round_at_random(expected: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Round expected counts at random, so that their mean does not change.

    The fraction is the probability of rounding up. Whole numbers and gaps (NaN) do not change.
    """
    nearest = np.round(expected)
    # A whole number with an error of computation, such as 2.9999999999, must not become 2.
    base = np.where(np.abs(expected - nearest) < 1e-9, nearest, np.floor(expected))
    up = rng.random(expected.shape) < expected - base
    return np.where(np.isnan(expected), np.nan, base + up)


AMOUNTS = ("requests", "input_tokens", "output_tokens", "total_tokens", "cached_tokens")


def with_shorter_bins(columns: DemandColumns, bin_s: float) -> DemandColumns:
    """Return a series in bins of ``bin_s`` seconds, if its own bins are a multiple of that.

    Otherwise it is returned unchanged. Whole numbers of requests stay whole. Tokens per request are
    those of the longer bin. A gap stays a gap.
    """
    parts = round(columns.bin_s / bin_s)
    if parts < 2 or abs(columns.bin_s / bin_s - parts) > 1e-6:
        return columns
    columns_by_name = {name: getattr(columns, name) for name in AMOUNTS}
    amounts = {name: values for name, values in columns_by_name.items() if values is not None}
    # One amount divides all, so that tokens per request do not change. It is requests, if counted.
    counted = [values for values in amounts.values() if not np.isnan(values).all()]
    divider = counted[0] if counted else columns.requests
    shares = _shares_of_parts(divider, parts)
    # Each bin times its shares, [bins, parts], in order of time.
    shorter = {name: (values[:, None] * shares).ravel() for name, values in amounts.items()}
    return replace(columns, bin_s=columns.bin_s / parts, **shorter)


def _mean_per_request(tokens: FloatArray, requests: FloatArray) -> float:
    """Return the mean tokens per request in bins that count both, at least 1."""
    both_known = ~np.isnan(requests) & ~np.isnan(tokens)
    total = float(requests[both_known].sum())
    return max(1.0, float(tokens[both_known].sum()) / total) if total else 1.0


def _shares_of_parts(totals: FloatArray, parts: int) -> FloatArray:
    """Return how to divide each bin's total among ``parts`` shorter bins, ``[bins, parts]``.

    The shares follow a smooth curve through the neighbouring bins. ``totals [bins]`` are amounts;
    NaN is a gap, whose shares are equal. If all totals are whole numbers, so are their parts.
    """
    known = np.nan_to_num(totals)[:, None]  # [bins, 1], as the slopes below; ``s`` is [parts + 1]
    # The neighbours of each bin; the first and the last bin are their own.
    before = np.concatenate([totals[:1], totals[:-1]])
    after = np.concatenate([totals[1:], totals[-1:]])
    s = np.arange(parts + 1) / parts  # edges of the parts, as a share of the bin
    # Cubic Hermite piece: the count since the bin's begin, from 0 to the total, with these slopes.
    since_begin = (
        known * (3 * s**2 - 2 * s**3)
        + _slope_to(before, known) * (s**3 - 2 * s**2 + s)
        + _slope_to(after, known) * (s**3 - s**2)
    )
    if (known == np.round(known)).all():
        since_begin = np.round(since_begin)
    return ratio(np.diff(since_begin, axis=1), known, 1 / parts)


def _slope_to(neighbour: FloatArray, known: FloatArray) -> FloatArray:
    """Return the slope at the edge between each bin and its ``neighbour [bins]``, ``[bins, 1]``.

    ``known [bins, 1]`` are the amounts, 0 in a gap. A bin beside a gap continues at its own rate.
    """
    neighbour = neighbour[:, None]
    neighbour = np.where(np.isnan(neighbour), known, neighbour)
    # The harmonic mean of both amounts; 0 if one of them is 0.
    return 2 * ratio(known * neighbour, known + neighbour, 0.0)
